"""What tells one run from another: settings that change its result, and settings that do not."""

from typing import Any

PLACES = ("trainer.accelerator", "trainer.devices", "trainer.num_nodes", "trainer.strategy")
"""Settings that say where a run is computed; another place may change the last digits."""


FREE = ("run_dir", "resume", "logger", "callbacks.progress", "callbacks.checkpoints", "callbacks.pruning",
        "callbacks.spikes", "batch.num_workers", "batch.eval_size", "trainer.log_every_n_steps",
        "trainer.default_root_dir", "test_weights", "not_finite",
        "block.activation_checkpointing", "model.encoder.activation_checkpointing",
        "model.decoder.activation_checkpointing", *PLACES)  # fmt: skip
"""Settings that may change while a run is under way: they change nothing of the weights."""


def flat(node: Any, prefix: str = "") -> dict[str, object]:
    """The leaves of nested dictionaries by their dotted keys."""
    if not isinstance(node, dict):
        return {prefix: node}
    return {key: leaf for k, v in node.items() for key, leaf in flat(v, f"{prefix}.{k}".lstrip(".")).items()}
