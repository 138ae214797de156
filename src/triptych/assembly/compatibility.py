"""Checks whether task, architecture and corpus are compatible."""
# Takes a DictConfig: it checks keys and classes that any file may name.

import logging
import re
from importlib.resources import files
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from triptych.config import ConfigError, error_prefix, target_of
from triptych.config.overrides import base_of, list_overridden
from triptych.models import DualEncoderBase
from triptych.nn import PatchEmbedding
from triptych.tasks import ImageGeneration, Task

log = logging.getLogger("triptych")

READ_BY = {
    "audio": "transcription or classification",
    "image": "captioning, classification, image_generation or image_text_matching",
}
"""The tasks with audio or image input."""
CORPUS = ("columns", "info", "splits", "optimum")
"""The attributes of a corpus class; see ``triptych.data.Corpus``."""


def check_grid(config: DictConfig) -> None:
    """Checks that the architecture and the corpus support the task, before data are read."""
    task, network = target_of(config, "task"), target_of(config, "model")
    with error_prefix():
        task.check_architecture(network.architecture, config.task)
    if issubclass(network, DualEncoderBase) != task.is_dual_encoder:
        other = "model=dual_encoder or dual_decoder" if task.is_dual_encoder else "task=image_text_matching"
        raise ConfigError(f"task={task.name} on model={base_of(config)}: expected {other}")
    if not task.is_sum_of_examples and config.trainer.accumulate_grad_batches > 1:
        raise ConfigError(
            f"trainer.accumulate_grad_batches={config.trainer.accumulate_grad_batches}: the loss of task={task.name} "
            "compares all examples of a step, so it cannot be accumulated; expected 1"
        )
    if not task.is_sum_of_examples and config.batch.global_size == 1:
        raise ConfigError(f"batch.global_size=1: task={task.name} compares the examples of a step; expected at least 2")
    levels = OmegaConf.select(config, "data.levels")
    if task is ImageGeneration and levels not in (None, config.task.levels):
        raise ConfigError(
            f"data.levels={levels} and task.levels={config.task.levels} differ: the data would be rounded twice; "
            f"expected data.levels={config.task.levels}"
        )
    check_corpus(config)


def check_corpus(config: DictConfig) -> None:
    """Checks that the corpus has the columns of the task, and inputs that the network supports."""
    task, corpus = target_of(config, "task"), target_of(config, "data")
    if lacking := [name for name in CORPUS if not hasattr(corpus, name)]:
        raise ConfigError(
            f"data._target_={config.data._target_}: a corpus needs {', '.join(CORPUS)}; this one lacks "
            f"{', '.join(lacking)}"
        )
    # data=tagged_text is TaggedText
    name = re.sub("(?<!^)(?=[A-Z])", "_", corpus.__name__.removesuffix("Corpus")).lower()
    if missing := task.missing(corpus.columns):
        other = corpus_of_files(task)
        raise ConfigError(
            f"task={task.name}: data={name} has no {' and no '.join(missing)}, but {', '.join(corpus.columns)}. Choose "
            f"another task, or other data{f', such as data={other}' if other else ''}"
        )
    for key in task.columns:
        if key != "text" and key in config.data and config.data[key] is None:  # words may replace a text
            raise ConfigError(f"task={task.name}: data.{key}=null; expected the name of a column")
    for signal, tasks in READ_BY.items():
        if signal in corpus.columns and signal not in (*task.reads, *task.columns):
            raise ConfigError(
                f"data={name} has {signal}s, and task={task.name} reads "
                f"{' and '.join(f'{other}s' for other in task.reads) or 'texts'}; use task={tasks}"
            )
    if "image" not in corpus.columns and issubclass(target_of(config, "model.embedding"), PatchEmbedding):
        architecture = target_of(config, "model").architecture
        raise ConfigError(f"data={name} has texts, and model={architecture} reads images; use data=digits")


def corpus_of_files(task: type[Task]) -> str | None:
    """The choice of data= that reads the user's files and has the columns of a task, with the fewest others (text if a
    task supports text and images); None: no choice."""
    found = {}
    for file in sorted(Path(str(files("triptych.conf")), "data").glob("*.yaml"), key=lambda file: file.stem):
        node = OmegaConf.load(file)
        if not OmegaConf.is_missing(node, "train"):  # downloaded or synthetic
            continue
        columns = target_of(OmegaConf.create({"data": node}), "data").columns
        if not task.missing(columns) and READ_BY.keys() & columns <= {*task.columns}:
            found[file.stem] = len(columns)
    return min(found, key=found.__getitem__, default=None)


def warn_of_default_data(config: DictConfig) -> None:
    """Warns if a run uses the default data, because the command line names none."""
    if not {"experiment", "data"} & {*list_overridden()}:
        other = corpus_of_files(target_of(config, "task"))
        reader = f". To use your own files, set data, such as data={other}" if other else ""
        log.warning("data is not set: using the synthetic data=dates%s", reader)
