"""The facts in a checkpoint that are needed to use its weights."""

from collections.abc import Mapping

import lightning as L

from triptych.tasks import Task


def checkpoint_facts(config: Mapping[str, object], task: Task) -> dict[str, object]:
    """Returns what is needed to use the weights of a task: configuration, tokenizer, classes; plain containers only.

    Args:
        task: the task, for its tokenizer and the facts about its corpus.
    """
    return {
        "config": config,
        "tokenizer": task.tokenizer.to_json(),
        "special_tokens": task.tokenizer.special.as_plain(),
        "corpus": task.corpus.as_plain(),
    }


class CheckpointFacts(L.Callback):
    """Adds the ``checkpoint_facts`` to each checkpoint under the key "triptych"."""

    def __init__(self, config: Mapping[str, object], task: Task) -> None:
        self._facts = checkpoint_facts(config, task)

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, object]
    ) -> None:
        """Adds the facts."""
        checkpoint["triptych"] = self._facts
