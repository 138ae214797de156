"""The base class of model families, which describes how to read and write their folders.

Tested by tests/interop/test_encoder_families.py and tests/interop/test_refusals.py.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from triptych.config import ConfigError, suggestion

Settings = dict[str, Any]
"""Values by the dotted key of our configuration, such as block.norm.eps, and choices by their group, such as
block/norm."""

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_python": "gelu",
    "quick_gelu": "quick_gelu",
    "silu": "silu",
    "swish": "silu",
    "relu2": "relu_squared",
    "linear": "identity",
}
"""Hugging Face's names of activations, and ours."""

WRITING = ("translation", "text_to_text", "chat", "infilling", "denoising")
"""Tasks that generate a text from an input."""

TOKEN_TASKS = ("language_modeling", *WRITING)
"""Tasks of causal language models; an imported one has the first."""

CLASSIFYING = ("classification", "tagging")
"""Tasks whose classes are listed in the configuration."""

HF_ACTIVATIONS = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
"""The first of Hugging Face's names of each of our activations."""

ENCODER_CLASSES = {
    "denoising": "ForMaskedLM",
    "classification": "ForSequenceClassification",
    "tagging": "ForTokenClassification",
    "question_answering": "ForQuestionAnswering",
}
"""By task, the ending of the class of an encoder."""

DECODER_CLASSES = {
    **dict.fromkeys(TOKEN_TASKS, "ForCausalLM"),
    "classification": "ForSequenceClassification",
    "tagging": "ForTokenClassification",
}
"""By task, the ending of the class of a decoder."""


def output_names(tokens: str, classes: str, tags: str) -> dict[str, dict[str, str]]:
    """The ``heads`` of a decoder, each an output layer.

    Args:
        tokens: their name of the layer that predicts tokens.
        classes: of the one for classification.
        tags: of the one for tagging.
    """
    names = {**dict.fromkeys(TOKEN_TASKS, tokens), "classification": classes, "tagging": tags}
    return {task: {"head.output": name} for task, name in names.items()}


def attention_names(ours: str, theirs: str, projections: Sequence[str] = "qkvo") -> dict[str, str]:
    """The names of the projections of an attention sub-layer.

    Args:
        ours: our name of the sub-layer.
        theirs: the prefix of their names.
        projections: the rest of their names, for queries, keys, values and output.
    """
    return {f"{ours}.{x}": theirs + name for x, name in zip("qkvo", projections, strict=True)}


def hf_activation(model: Settings, stack: str) -> str:
    """Hugging Face's name of a stack's activation; for a stack without one, that of gelu."""
    return HF_ACTIVATIONS[model.get(f"{stack}.feed_forward.activation", "gelu")]


class Family(ABC):
    """A family of models: its configuration file and the names of its tensors, in both directions.

    "Their" names are those of Hugging Face folders.

    Attributes:
        model_type: of config.json.
        architecture: ours.
        embedding: our class of the embedding.
        classes: by task, the class of ``transformers`` with a head for it.
        names: their name of each of our modules or parameters; {} is the number of a layer, [n] the n-th equal part of
            the rows of a tensor that fuses several of ours.
        heads: the same for the heads, by task.
        prefix: of the names of the body; files of a bare model lack it.
        bare: tasks whose class lacks it as well.
        transposed: endings of the modules whose weights are [in, out].
        copies: by name, the tensor that it repeats in some files, or replaces.
        tied_copies: the same, if the output layer is the token table.
        own_if_untied: copies that are separate weights if tie_word_embeddings is false.
        sizes: their name of each size in ``shape``.
        numbers: by the place of a number in a block, such as norm.eps, their name, and the default in files without it.
        parts: keys of config.json with nested configurations, which repeat the special tokens.
        files: other JSON files of a folder, whose content is added to the configuration under their names; each with an
            alternative file, and the key in it.
        buffers: patterns of names in old files that are not weights.
        other_heads: patterns of names of other heads than the one that is read.
    """

    model_type: ClassVar[str]
    architecture: ClassVar[str]
    embedding: ClassVar[str] = "triptych.nn.Embedding"
    classes: ClassVar[Mapping[str, str]]
    names: ClassVar[Mapping[str, str]]
    heads: ClassVar[Mapping[str, Mapping[str, str]]]
    prefix: ClassVar[str]
    bare: ClassVar[tuple[str, ...]] = ()
    transposed: ClassVar[tuple[str, ...]] = ()
    copies: ClassVar[Mapping[str, str]] = {}
    tied_copies: ClassVar[Mapping[str, str]] = {}
    own_if_untied: ClassVar[tuple[str, ...]] = ()
    sizes: ClassVar[Mapping[str, str]] = {
        "d_model": "hidden_size",
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "d_ff": "intermediate_size",
        "vocab_size": "vocab_size",
        "max_length": "max_position_embeddings",
    }
    numbers: ClassVar[Mapping[str, tuple[str, float]]] = {}
    parts: ClassVar[tuple[str, ...]] = ()
    files: ClassVar[Mapping[str, tuple[str, str]]] = {}
    buffers: ClassVar[tuple[str, ...]] = ()
    other_heads: ClassVar[tuple[str, ...]] = ()

    @property
    def model(self) -> str:
        """The choice of ``model=`` that its settings change."""
        return self.architecture

    @abstractmethod
    def settings(self, config: "HFConfig", tensors: Mapping[str, Tensor]) -> Settings:
        """Our settings.

        Args:
            config: the content of config.json.
            tensors: the content of the folder's safetensors files, read on access.
        """

    @abstractmethod
    def config(self, model: Settings) -> dict[str, Any]:
        """Their configuration, without what it cannot express.

        Args:
            model: the resolved ``model`` node, flat, such as encoder.norm.eps; it may have parts that no family has.

        Raises:
            ConfigError: a required key cannot be expressed.
        """

    def plain_settings(self, config: "HFConfig") -> Settings:
        """Our settings from ``sizes`` and ``numbers``."""
        sizes = {f"shape.{ours}": config.size(theirs) for ours, theirs in self.sizes.items()}
        return sizes | {f"block.{ours}": config.get(*theirs) for ours, theirs in self.numbers.items()}

    def plain_config(self, model: Settings) -> dict[str, Any]:
        """Their configuration from ``sizes`` and ``numbers``; of two stacks, the encoder's."""
        stack = "decoder" if self.architecture == "decoder_only" else "encoder"
        nodes = {ours: "embedding" if ours == "vocab_size" else stack for ours in self.sizes}
        sizes = {theirs: model[f"{nodes[ours]}.{ours}"] for ours, theirs in self.sizes.items()}
        absent = {ours: 1e-5 if ours == "norm.eps" else 0.0 for ours in self.numbers}
        return sizes | {
            theirs: model.get(f"{stack}.{ours}", absent[ours]) for ours, (theirs, _) in self.numbers.items()
        }

    def shapes(self, config: "HFConfig") -> Mapping[str, tuple[int, ...]]:
        """By their name, their shape if it differs from ours; -1 is inferred."""
        return {}

    def reordered(self, state: Mapping[str, Tensor], config: "HFConfig", *, to_ours: bool) -> Mapping[str, Tensor]:
        """The same function, with its channels in our order or in theirs.

        Args:
            state: by our names.
            config: theirs.
            to_ours: the direction.
        """
        return state

    def predicts_tokens(self, task: str) -> bool:
        """Whether the outputs of the head are the vocabulary."""
        return task not in (*CLASSIFYING, "question_answering", "image_text_matching")

    def task_of(self, config: "HFConfig") -> str:
        """The task of the head of a folder's class; for a bare model, the first task."""
        names = config.get("architectures", None) or [""]
        name = str(names[0]) if isinstance(names, list) else str(names)
        tasks = [task for task, known in self.classes.items() if known == name]
        if not tasks and name and not name.endswith(("Model", "ForPreTraining")):
            known = ", ".join(dict.fromkeys(self.classes.values()))
            raise ConfigError(f"{config.place}: architectures={names}; expected one of {known}")
        return [*tasks, *self.classes][0]

    def hf_name(self, ours: str, task: str, config: "HFConfig") -> tuple[str, int | None]:
        """Their name of one of our parameters or fixed tables, and its part if they fuse several.

        Raises:
            KeyError: they have no such tensor.
        """
        general = re.sub(r"\.layers\.\d+\.", ".layers.{}.", ours)
        number = "".join(re.findall(r"\.layers\.(\d+)\.", ours))
        names = {**self.names, **self.heads.get(task, {})}
        module, _, leaf = general.rpartition(".")
        theirs, ending = (names[general], "") if general in names else (names[module], f".{leaf}")
        theirs, bracket, part = theirs.partition("[")
        return theirs.format(number) + ending, int(part[:-1]) if bracket else None

    def is_transposed(self, theirs: str) -> bool:
        """Whether their weight is [in, out]."""
        return theirs.removesuffix(".weight").endswith(self.transposed)


class HFConfig:
    """The content of a config.json; missing or invalid keys raise errors for the user.

    Args:
        values: the content.
        place: the file, for messages.
    """

    def __init__(self, values: Mapping[str, Any], place: str) -> None:
        self.values, self.place = values, place

    def __getitem__(self, key: str) -> Any:
        """The value of a required key."""
        if key not in self.values:
            raise ConfigError(f"{self.place}: {key} is missing")
        return self.values[key]

    def size(self, key: str) -> int:
        """The value of a required size."""
        value = self[key]
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"{self.place}: {key}={value!r}; expected a whole number of at least 1")
        return value

    def get(self, key: str, default: Any) -> Any:
        """The value of a key, or the default of the published files."""
        return self.values.get(key, default)

    def part(self, key: str) -> "HFConfig":
        """A required nested configuration."""
        if not isinstance(self[key], dict):
            raise ConfigError(f"{self.place}: {key}={self[key]!r}; expected an object")
        return HFConfig(self[key], f"{self.place}: {key}")

    def activation(self, key: str, default: str | None = None) -> str:
        """Our name of an activation."""
        theirs = str(self[key] if default is None else self.get(key, default))
        if theirs not in ACTIVATIONS:
            raise ConfigError(f"{self.place}: {key}={theirs}{suggestion(theirs, list(ACTIVATIONS))}")
        return ACTIVATIONS[theirs]

    def expect(self, key: str, default: Any, valid: Collection[Any]) -> None:
        """Raises an error for values that change the function in a way that is not supported."""
        if (value := self.get(key, default)) not in valid:
            raise ConfigError(f"{self.place}: {key}={value}; expected {' or '.join(map(str, valid))}")

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes, in order."""
        names = self.get("id2label", {str(i): f"LABEL_{i}" for i in range(self.get("num_labels", 2))})
        keys = [str(i) for i in range(len(names))] if isinstance(names, dict) else []
        if not keys or set(names) != set(keys) or len(set(map(str, names.values()))) < len(keys):
            raise ConfigError(f"{self.place}: id2label={names}; expected a different name for each of 0, 1, 2, ...")
        return tuple(str(names[key]) for key in keys)
