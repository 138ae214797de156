"""``init_from``: initializes the stacks of a run from a checkpoint; the head is that of the run's task."""
# Takes a DictConfig: before the plan, overrides, checkpoints and matches may still set any key.

import logging

import torch
from omegaconf import DictConfig, OmegaConf

from triptych.assembly.restore import LoadedCheckpoint, read_trained
from triptych.config import ConfigError, join_names, target_of
from triptych.config.overrides import stack_sources
from triptych.nn import Network
from triptych.storage.run_directory import RunDirectory
from triptych.tasks import Task

log = logging.getLogger("triptych")

HEAD, OUTPUT, EMBEDDING = "head.", "head.output.weight", "embedding.tokens.weight"
CROSS = ".cross_"
"""Part of the names of cross-attention weights and their residual connection."""
DISTANCES = "position.table.weight"
"""Table of relative positions, whose rows mean other distances in a causal stack."""


def settings_to_adopt(config: DictConfig) -> "tuple[DictConfig, InitialWeights | None]":
    """The configuration of the ``init_from`` checkpoint, and the checkpoint if it was read.

    A run that has its own checkpoints uses its recorded configuration instead, so that ``init_from`` may be deleted.
    """
    run = RunDirectory(config.run_dir)
    if config.resume != "never" and any(run.checkpoints.glob("*.ckpt")):
        recorded = OmegaConf.load(run.config) if run.config.exists() else None
        if isinstance(recorded, DictConfig) and OmegaConf.select(recorded, "init_from") == config.init_from:
            return recorded, None
    pretrained = InitialWeights(config.init_from, config.init_cross_attention)
    return pretrained.config, pretrained


class InitialWeights:
    """A checkpoint that initializes the stacks of a run.

    Args:
        name: checkpoint file, or run directory (its latest checkpoint).
        cross_attention: value of ``init_cross_attention``.

    Attributes:
        config: complete configuration of the checkpoint.
        architecture: architecture of its network.
        tokenizer: its tokenizer, which the run also uses.
    """

    def __init__(self, name: str, cross_attention: str) -> None:
        trained: LoadedCheckpoint = read_trained(name, "init_from")
        self._copies_self_attention = cross_attention == "self_attention"
        self.name, self.config, self.tokenizer, self._corpus = name, trained.config, trained.tokenizer, trained.corpus
        self.architecture: str = target_of(self.config, "model").architecture
        self._weights = trained.weights

    def sources(self, network: Network) -> dict[str, str | None]:
        """The checkpoint's tensor that initializes each tensor of a network; None: it is new. For another architecture,
        each stack and its embedding come from the stack of the same name, or from the only one."""
        own = network.architecture
        stacks = stack_sources(self.architecture, own)
        if not any(name.startswith("source_embedding.") for name in self._weights):
            stacks["source_embedding"] = "embedding"
        elif own == "encoder_only" and self.architecture == "full":
            stacks["embedding"] = "source_embedding"

        def source_of(name: str) -> str | None:
            stack, dot, rest = name.partition(".")
            name = f"{stacks.get(stack, stack)}{dot}{rest}"
            if rest == DISTANCES and getattr(network, stack).causal != self.config.model[stacks[stack]].causal:
                return None
            if name in self._weights or own == self.architecture or CROSS not in name:
                return name
            return name.replace(CROSS, ".self_") if self._copies_self_attention else None

        return {name: source_of(name) for name in network.state_dict()}

    def check(self, network: Network) -> None:
        """Checks that the embedding and the stacks of a network match the checkpoint. A learned position table may be
        longer than needed, and another architecture may lack a stack or cross-attention."""
        own, sources, problems = network.state_dict(), self.sources(network), []
        used = {name for name in sources.values() if name is not None}
        parts, is_other = {name.partition(".")[0] for name in used}, network.architecture != self.architecture
        for name in [name for name in self._weights if name not in used]:
            is_of_other = CROSS in name or name.endswith(DISTANCES) or name.partition(".")[0] not in parts
            if not (is_other and is_of_other):
                problems.append((name, name))
        problems += [(name, source) for name, source in sources.items() if source is not None]
        found = []
        for name, source in problems:
            was = tuple(self._weights[source].shape) if source in self._weights else ()
            now = tuple(own[name].shape) if name in own else ()
            is_longer = name.endswith(".position.table") and was[:1] > now[:1] and was[1:] == now[1:]
            if was != now and not is_longer and not name.startswith(HEAD):
                found.append(f"{name} is {was or 'missing'} in the checkpoint and {now or 'missing'} in this run")
        if found:
            raise ConfigError(f"init_from={self.name} has a different network: {join_names(found)}")

    def load_into(self, task: Task) -> list[str]:
        """Copies the checkpoint's weights into a task, including the head if both predict the same outputs.

        Returns:
            the names of the tensors that were not copied.
        """
        self.check(task.network)
        own, sources = task.network.state_dict(), self.sources(task.network)
        is_tied = EMBEDDING in own and own[OUTPUT].data_ptr() == own[EMBEDDING].data_ptr()
        with_head = self._predicts_the_same(task)
        if with_head and is_tied and not torch.equal(self._weights[OUTPUT], self._weights[EMBEDDING]):
            raise ConfigError(
                f"init_from={self.name} has a separate output layer; expected block.tie_word_embeddings=false to keep "
                "it"
            )
        names = [name for name in own if not (is_tied and name == OUTPUT)]
        taken = {
            name: source
            for name in names
            if (source := sources[name]) is not None and (with_head or not name.startswith(HEAD))
        }
        for name, source in taken.items():
            own[name].copy_(self._weights[source][: len(own[name])])
        new_weights = [name for name in names if name not in taken]
        weights = f"{len(taken)} tensors ({sum(own[name].numel() for name in taken):,} parameters)"
        loaded = f"{weights}, the network settings and the tokenizer; new: {join_names(new_weights) or 'none'}"
        log.info("init_from=%s%s: loaded %s", self.name, self._adaptation(task.network), loaded)
        for name, source in taken.items():
            if len(own[name]) < len(self._weights[source]):
                log.info("init_from: %s: the first %s of %s rows", name, len(own[name]), len(self._weights[source]))
        return new_weights

    def _adaptation(self, network: Network) -> str:
        """Describes which stack was initialized from which, for another architecture."""
        if network.architecture == self.architecture:
            return ""
        parts = [
            f"{name} from {source}" for name, source in stack_sources(self.architecture, network.architecture).items()
        ]
        if any(CROSS in name and CROSS not in (source or CROSS) for name, source in self.sources(network).items()):
            parts.append("cross-attention from self-attention")
        return f" ({self.architecture} to {network.architecture}: {', '.join(parts)})"

    def _predicts_the_same(self, task: Task) -> bool:
        own = {name: t.shape for name, t in task.network.state_dict().items() if name.startswith(HEAD)}
        if own != {name: t.shape for name, t in self._weights.items() if name.startswith(HEAD)}:
            return False
        if task.predicts_tokens:  # with the same tokenizer
            return bool(target_of(self.config, "task").predicts_tokens)
        labels, theirs = ((c.labels, c.tag_labels) for c in (task.corpus, self._corpus))
        return bool(target_of(self.config, "task").name == task.name and labels == theirs)
