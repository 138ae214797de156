"""The facts in a checkpoint that are needed to use its weights.

Tested by tests/tasks/test_task.py.
"""

from collections.abc import Mapping
from typing import Any

import lightning as L

from triptych.storage.run_directory import FORMAT
from triptych.tasks import Task


def checkpoint_metadata(config: Mapping[str, object], task: Task) -> dict[str, object]:
    """Returns what is needed to use the weights of a task: configuration, tokenizer, classes; plain containers only.

    Args:
        task: the task, for its tokenizer and the facts about its corpus.
    """
    return {
        "format": FORMAT,
        "config": config,
        "tokenizer": task.tokenizer.to_json(),
        "special_tokens": task.tokenizer.special.to_dict(),
        "corpus": task.corpus.to_dict(),
    }


class CheckpointMetadata(L.Callback):
    """Adds the ``checkpoint_metadata`` to each checkpoint under the key "triptych"."""

    def __init__(self, config: Mapping[str, object], task: Task) -> None:
        self._facts = checkpoint_metadata(config, task)

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Adds the facts."""
        checkpoint["triptych"] = self._facts
