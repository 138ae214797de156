"""``init_from``: a run begins with the stacks of a checkpoint, under the head of its own task."""

import logging
from pathlib import Path

import torch
from omegaconf import DictConfig, OmegaConf

from triptych.assembly.restore import Trained, read_trained
from triptych.config import ConfigError, listed, target_of
from triptych.nn import Network
from triptych.tasks import Task

log = logging.getLogger("triptych")

PREFIX, HEAD, OUTPUT, EMBEDDING = "network.", "head.", "head.output.weight", "embedding.tokens.weight"


def settings_to_adopt(config: DictConfig) -> "tuple[DictConfig, Pretrained | None]":
    """The configuration of the network that this run begins with: as ``init_from`` has it, or, once the run has
    checkpoints of its own, as it was recorded, so that ``init_from`` need not be there any more.

    Returns:
        The configuration, and the checkpoint if it was read.

    Raises:
        ConfigError: there is no such checkpoint.
    """
    run_dir = Path(config.run_dir)
    if config.resume != "never" and any((run_dir / "checkpoints").glob("*.ckpt")):
        recorded = OmegaConf.load(run_dir / "config.yaml") if (run_dir / "config.yaml").exists() else None
        if isinstance(recorded, DictConfig) and OmegaConf.select(recorded, "init_from") == config.init_from:
            return recorded, None
    pretrained = Pretrained(config.init_from)
    return pretrained.config, pretrained


class Pretrained:
    """A checkpoint whose stacks a run begins with.

    Args:
        name: file, or run directory (its newest checkpoint).

    Attributes:
        config: its complete configuration.
        tokenizer: of its texts, and of this run's.

    Raises:
        ConfigError: the file is no checkpoint of Triptych.
    """

    def __init__(self, name: str) -> None:
        trained: Trained = read_trained(name, "init_from")
        self.name, self.config, self.tokenizer, self._corpus = name, trained.config, trained.tokenizer, trained.corpus
        self._weights = {k.removeprefix(PREFIX): v for k, v in trained.weights.items() if k.startswith(PREFIX)}

    def check(self, network: Network) -> None:
        """Refuses another network than the checkpoint's, as far as the embedding and the stacks go. A learned table of
        positions may be longer than needed.

        Args:
            network: perhaps on the meta device.

        Raises:
            ConfigError: names what differs, with both shapes.
        """
        own = network.state_dict()
        problems = []
        for name in {**self._weights, **own}:
            was, now = (tuple(s[name].shape) if name in s else None for s in (self._weights, own))
            is_longer = name.endswith(".position.table") and was and now and was[0] > now[0] and was[1:] == now[1:]
            if was != now and not is_longer and not name.startswith(HEAD):
                problems.append(f"{name} is {was or 'missing'} there and {now or 'missing'} here")
        if problems:
            raise ConfigError(f"init_from={self.name} has another network: {listed(problems)}")

    def give(self, task: Task) -> None:
        """Copies the checkpoint's weights into a task; the head's only if it predicts the same, else it stays as it is.

        Raises:
            ConfigError: a network that does not fit.
        """
        self.check(task.network)
        own = task.network.state_dict()
        is_tied = EMBEDDING in own and own[OUTPUT].data_ptr() == own[EMBEDDING].data_ptr()
        with_head = self._predicts_the_same(task)
        if with_head and is_tied and not torch.equal(self._weights[OUTPUT], self._weights[EMBEDDING]):
            raise ConfigError(
                f"init_from={self.name} has an output layer of its own; block.tie_output=true would lose it"
            )
        names = [name for name in own if not (is_tied and name == OUTPUT)]
        taken = [name for name in names if with_head or not name.startswith(HEAD)]
        for name in taken:
            own[name].copy_(self._weights[name][: len(own[name])])
        log.info(
            "init_from=%s: %s tensors (%s parameters) taken, and the network's settings and the tokenizer; new: %s",
            self.name,
            len(taken),
            f"{sum(own[name].numel() for name in taken):,}",
            listed([name for name in names if name not in taken]) or "none",
        )
        for name in taken:
            if len(own[name]) < len(self._weights[name]):
                log.info("init_from: %s: the first %s of %s rows", name, len(own[name]), len(self._weights[name]))

    def _predicts_the_same(self, task: Task) -> bool:
        own = {name: t.shape for name, t in task.network.state_dict().items() if name.startswith(HEAD)}
        if own != {name: t.shape for name, t in self._weights.items() if name.startswith(HEAD)}:
            return False
        if task.predicts_tokens:  # of the same tokenizer
            return bool(target_of(self.config, "task").predicts_tokens)
        labels, theirs = ((c.labels, c.tag_labels) for c in (task.corpus, self._corpus))
        return bool(target_of(self.config, "task").name == task.name and labels == theirs)
