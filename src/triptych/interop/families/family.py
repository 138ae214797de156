"""What must be known of a family of published models to read and write its folders."""

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
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
}
"""Hugging Face's names of activations, and ours."""

WRITING = ("translation", "text_to_text", "chat", "infilling", "denoising")
"""The tasks that write a text for what they are given."""

TOKEN_TASKS = ("language_modeling", *WRITING)
"""The tasks that a causal language model is for; the first is the one of an imported one."""

CLASSIFYING = ("classification", "tagging")
"""The tasks whose classes the configuration names."""

THEIR_ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_tanh": "gelu_new",
    "quick_gelu": "quick_gelu",
    "silu": "silu",
    "relu_squared": "relu2",
}


def their_activation(model: Settings, stack: str) -> str:
    """Their name of the activation of a stack; of one without any, gelu's."""
    return THEIR_ACTIVATIONS[model.get(f"{stack}.feed_forward.activation", "gelu")]


class Family(ABC):
    """A family of models: its configuration file and the names of its tensors, in both directions.

    Attributes:
        model_type: of config.json.
        architecture: of ours.
        embedding: our class of it.
        classes: by task, the class of ``transformers`` that has the head for it.
        names: by our module or parameter, theirs; {} is the number of a layer, [n] the n-th equal part of the rows of a
            tensor that fuses several of ours.
        heads: the same for the heads, by task.
        prefix: of the names of the body, which files of a bare model lack.
        bare: the tasks whose class lacks it as well.
        transposed: endings of the modules whose weights are [in, out].
        copies: by name, the tensor that it repeats in some files, or stands for.
        tied_copies: the same, where the output layer is the token table.
        own_if_untied: those copies that are weights of their own where tie_word_embeddings is false.
        sizes: by the name of a size in ``shape``, theirs.
        numbers: by the place of a number in a block, such as norm.eps, their name, and what files without it mean.
        parts: keys of config.json whose values are configurations too, with the special tokens once more.
        files: further JSON files of a folder, whose content stands in the configuration under their names; each with
            the file, and the key in it, that some folders have instead.
        buffers: patterns of names in old files that are no weights.
        other_heads: patterns of names that belong to other heads than the one that is read.
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
    def settings(self, config: "TheirConfig", tensors: Mapping[str, Tensor]) -> Settings:
        """Our settings.

        Args:
            config: the content of config.json.
            tensors: the content of the folder's safetensors files, read when looked up.
        """

    @abstractmethod
    def config(self, model: Settings) -> dict[str, Any]:
        """Their configuration; what it cannot say of the model is left out.

        Args:
            model: the resolved ``model`` node, flat, such as encoder.norm.eps; its parts may be any, also such as no
                family has.

        Raises:
            ConfigError: it cannot say what it must.
        """

    def plain_settings(self, config: "TheirConfig") -> Settings:
        """Our settings, as far as ``sizes`` and ``numbers`` say them."""
        sizes = {f"shape.{ours}": config.size(theirs) for ours, theirs in self.sizes.items()}
        return sizes | {f"block.{ours}": config.get(*theirs) for ours, theirs in self.numbers.items()}

    def plain_config(self, model: Settings) -> dict[str, Any]:
        """Their configuration, as far as ``sizes`` and ``numbers`` say it; of two stacks, the encoder's."""
        stack = "decoder" if self.architecture == "decoder_only" else "encoder"
        nodes = {ours: "embedding" if ours == "vocab_size" else stack for ours in self.sizes}
        sizes = {theirs: model[f"{nodes[ours]}.{ours}"] for ours, theirs in self.sizes.items()}
        absent = {ours: 1e-5 if ours == "norm.eps" else 0.0 for ours in self.numbers}
        return sizes | {
            theirs: model.get(f"{stack}.{ours}", absent[ours]) for ours, (theirs, _) in self.numbers.items()
        }

    def shapes(self, config: "TheirConfig") -> Mapping[str, tuple[int, ...]]:
        """By their name, their shape, where it is not ours; -1 is what remains."""
        return {}

    def reordered(self, state: Mapping[str, Tensor], config: "TheirConfig", *, to_ours: bool) -> Mapping[str, Tensor]:
        """The same function, with its channels in our order or in theirs.

        Args:
            state: by our names.
            config: theirs.
            to_ours: which way.
        """
        return state

    def predicts_tokens(self, task: str) -> bool:
        """Whether the outputs of the head are the vocabulary."""
        return task not in (*CLASSIFYING, "question_answering", "image_text_matching")

    def task_of(self, config: "TheirConfig") -> str:
        """The task that the class of a folder has the head for; of a bare model, the first."""
        names = config.get("architectures", None) or [""]
        name = str(names[0]) if isinstance(names, list) else str(names)
        tasks = [task for task, known in self.classes.items() if known == name]
        if not tasks and name and not name.endswith(("Model", "ForPreTraining")):
            known = ", ".join(dict.fromkeys(self.classes.values()))
            raise ConfigError(f"{config.place}: architectures={names}; expected one of {known}")
        return [*tasks, *self.classes][0]

    def their_name(self, ours: str, task: str, config: "TheirConfig") -> tuple[str, int | None]:
        """Their name of a parameter or a fixed table of ours, and which part of it, if they fuse several.

        Raises:
            KeyError: they have nothing like it.
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
        return theirs.removesuffix(".weight").endswith(self.transposed) if self.transposed else False


class TheirConfig:
    """The content of a config.json; what is asked of it and is not there is an answer for the user.

    Args:
        values: the content.
        place: the file, for messages.
    """

    def __init__(self, values: Mapping[str, Any], place: str) -> None:
        self.values, self.place = values, place

    def __getitem__(self, key: str) -> Any:
        """The value of a key that must be there."""
        if key not in self.values:
            raise ConfigError(f"{self.place}: {key} is missing")
        return self.values[key]

    def size(self, key: str) -> int:
        """A number of things, which must be there."""
        value = self[key]
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"{self.place}: {key}={value!r}; expected a whole number of at least 1")
        return value

    def get(self, key: str, default: Any) -> Any:
        """The value of a key, or what the published files mean when it is not there."""
        return self.values.get(key, default)

    def part(self, key: str) -> "TheirConfig":
        """A configuration within this one, which must be there."""
        if not isinstance(self[key], dict):
            raise ConfigError(f"{self.place}: {key}={self[key]!r}; expected an object")
        return TheirConfig(self[key], f"{self.place}: {key}")

    def activation(self, key: str, default: str | None = None) -> str:
        """Our name of an activation."""
        theirs = str(self[key] if default is None else self.get(key, default))
        if theirs not in ACTIVATIONS:
            raise ConfigError(f"{self.place}: {key}={theirs}{suggestion(theirs, list(ACTIVATIONS))}")
        return ACTIVATIONS[theirs]

    def expect(self, key: str, default: Any, valid: Collection[Any]) -> None:
        """Refuses values that would change the function in a way that we do not have."""
        if (value := self.get(key, default)) not in valid:
            raise ConfigError(f"{self.place}: {key}={value}; expected {' or '.join(map(str, valid))}")

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes, in their order."""
        names = self.get("id2label", {str(i): f"LABEL_{i}" for i in range(self.get("num_labels", 2))})
        keys = [str(i) for i in range(len(names))] if isinstance(names, dict) else []
        if not keys or set(names) != set(keys) or len(set(map(str, names.values()))) < len(keys):
            raise ConfigError(f"{self.place}: id2label={names}; expected a different name for each of 0, 1, 2, ...")
        return tuple(str(names[key]) for key in keys)
