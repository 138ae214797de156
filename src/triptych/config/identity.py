"""The settings that identify a run, and those that do not affect its result.

Tested by tests/training/test_resume.py and tests/interop/test_published_settings.py.
"""
# Takes a DictConfig: a configuration is read back in plain types.

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

PLACES = ("trainer.accelerator", "trainer.devices", "trainer.num_nodes", "trainer.strategy")
"""Settings of the hardware that a run uses; changing them may change the last digits."""
EVERY_STACK = ("model.encoder", "model.decoder", "model.source_encoder", "model.source_decoder")
"""The keys that may hold a stack."""

FREE = ("run_dir", "resume", "logger", "callbacks.progress", "callbacks.checkpoints", "callbacks.pruning",
        "callbacks.loss_spikes", "batch.num_workers", "batch.eval_batch_size", "trainer.log_every_n_steps",
        "trainer.default_root_dir", "test_weights", "on_nonfinite",
        "block.activation_checkpointing", *(f"{stack}.activation_checkpointing" for stack in EVERY_STACK),
        *PLACES)  # fmt: skip
"""Settings that may change when a run is resumed, because they do not affect the weights."""


def as_dict(node: DictConfig, *, resolve: bool = True) -> dict[str, Any]:
    """The content of a node in plain types."""
    return cast(dict[str, Any], OmegaConf.to_container(node, resolve=resolve))


def flat(node: Any, prefix: str = "") -> dict[str, object]:
    """The leaves of nested dictionaries by their dotted keys."""
    if not isinstance(node, dict):
        return {prefix: node}
    return {key: leaf for k, v in node.items() for key, leaf in flat(v, f"{prefix}.{k}".lstrip(".")).items()}


def chosen(config: dict[Any, Any]) -> dict[str, object]:
    """The leaves of a configuration by their dotted keys. Parts, optimizer and scheduler are given by their choice
    (``block.position: rotary``, ``optimizer: adamw``), or by their class if it is not Triptych's."""
    leaves = flat(config)
    parts = [key.removesuffix("._partial_") for key in leaves if key.endswith("._partial_")]
    for node in [*parts, *(name for name in ("optimizer", "scheduler") if f"{name}._target_" in leaves)]:
        leaves.pop(f"{node}._partial_", None)
        target = str(leaves.pop(f"{node}._target_", None))
        leaves[node] = _names().get(target, target)
    return leaves


@cache
def _names() -> dict[str, str]:
    """The choice of each of Triptych's parts, optimizers and schedulers, by class."""
    conf = Path(str(files("triptych.conf")))
    return {
        target: file.stem
        for folder in ("block/*", "optimizer", "scheduler")
        for file in conf.glob(f"{folder}/*.yaml")
        if (target := OmegaConf.select(OmegaConf.load(file), "_target_"))
    }
