"""The typed root of the configuration: which settings there are, of which types. ``config/build.py`` makes objects of
them."""
# Takes a DictConfig: the nodes are open, each typed by the class that its _target_ names.

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING, DictConfig


@dataclass
class Shape:
    """The size of a network; the same node feeds every architecture.

    Attributes:
        d_model: width.
        num_layers: blocks of each stack (the full model has two stacks).
        num_heads: heads of each attention.
        head_dim: width of each head; None: d_model / num_heads.
        d_ff: width of the feed-forward sub-layers.
        vocab_size: tokens; None: as many as the tokenizer has.
        max_length: the most tokens that a stack reads at once: positions of the learned or sinusoidal table, length of
            the windows of a long text.
    """

    d_model: int = 128
    num_layers: int = 2
    num_heads: int = 4
    head_dim: int | None = None
    d_ff: int = 512
    vocab_size: int | None = None
    max_length: int = 128


@dataclass
class Block:
    """The parts of the shared blocks and what these share; the same node feeds every stack. A part is a group of its
    own (``block/position=rotary``), with options of its own (``block.position.theta=5e5``).

    Attributes:
        position: where a token stands.
        attention: of each position to others.
        feed_forward: of each position by itself.
        residual: the way around both.
        norm: of each of these, and of the last states.
        embed_norm: whether embedded tokens are normalised before the first block.
        first_norm: whether the first block normalises what its attention reads, which after embed_norm it need not.
        bias: whether the projections have a bias.
        scale_embedding: whether tokens' vectors are multiplied by sqrt(d_model).
        num_token_types: types of tokens that have a vector each, such as the two texts of a pair.
        tie_output: whether the output layer is the token table, where the outputs are tokens.
        dropout: of embeddings and of each sub-layer's output.
        token_dropout: probability that training does not see a token (its place it does).
        activation_checkpointing: whether the backward pass computes each block anew, which saves memory and costs time.
    """

    position: dict[str, Any] = MISSING
    attention: dict[str, Any] = MISSING
    feed_forward: dict[str, Any] = MISSING
    residual: dict[str, Any] = MISSING
    norm: dict[str, Any] = MISSING
    embed_norm: bool = False
    first_norm: bool = True
    bias: bool = True
    scale_embedding: bool = True
    num_token_types: int = 0
    tie_output: bool = True
    dropout: float = 0.1
    token_dropout: float = 0.0
    activation_checkpointing: bool = False


PARTS = ("position", "attention", "feed_forward", "residual", "norm")
"""What of ``block`` is chosen by a group; a stack may have others."""


@dataclass
class Heads:
    """The head, by what the task predicts; ``model.head`` is one of them.

    Attributes:
        tokens: of the vocabulary.
        classes: of the whole text.
        tags: of each word.
    """

    tokens: dict[str, Any] = MISSING
    classes: dict[str, Any] = MISSING
    tags: dict[str, Any] = MISSING


@dataclass
class BatchConfig:
    """How examples become batches.

    Attributes:
        size: examples of an update, over all ranks and accumulated batches; None: tokens says how many.
        tokens: the most tokens of an update, those of both sides together and without padding; None: size says how
            many examples.
        packed: whether the texts of a training batch stand in one row, without padding; each is read as if it stood
            alone, and validation and test are padded. The updates are the same, but for rounding and what dropout
            draws. None: on CPUs, if a tenth or more of the positions would be padding.
        eval_size: examples of a batch in validation and test; changes no metric.
        eval_stride: tokens from one window of a long text to the next in validation and test: what a window shares with
            the one before is its context and is not scored again; None: shape.max_length, no overlap.
        num_workers: processes that collate ahead of time; 0: none.
        too_long: what happens to an example of more than shape.max_length tokens: error (it is refused), truncate, or
            drop (from the training split; validation and test keep every example, and truncate).
        merge_dropout: with tokenizer=bpe, the training examples are cut into tokens several times, and each time every
            merge of the tokenizer is left out with this probability, so that rare words are seen in smaller pieces
            (after Provilkov et al. 2020, who draw anew at each merge of each word); 0: as the tokenizer cuts them.
        cuts: how many times that is, if merge_dropout is not 0; an epoch has so many copies of each example.
    """

    size: int | None = 128
    tokens: int | None = None
    packed: bool | None = None
    eval_size: int = 256
    eval_stride: int | None = None
    num_workers: int = 0
    too_long: str = field(default="error", metadata={"choices": ("error", "truncate", "drop")})
    merge_dropout: float = 0.0
    cuts: int = 8


STACKS = {
    "full": ("encoder", "decoder"),
    "encoder_only": ("encoder",),
    "decoder_only": ("decoder",),
    "prefix_decoder": ("decoder",),
}
"""The stacks of each architecture, by their names in its configuration."""
ARCHITECTURES = tuple(STACKS)
MATCHES = ("params", "active_params", "train_flops", "tokens", "wall_time")
"""What ``match`` may be; see ``triptych.planning.matching``."""


@dataclass
class TrainConfig:
    """The root of a training run. The nodes that are not typed here are typed by what they build.

    Attributes:
        frames: what reads sounds, where the data have some (``triptych.nn.FrameEmbedding``).
        patches: what reads images, where the data have some (``triptych.nn.PatchEmbedding``).
        seed: of the weights, the order of the examples and dropout.
        run_dir: where everything is written.
        resume: auto (go on from the newest good checkpoint in run_dir, if there is one), never (start over), or the run
            directory or checkpoint to go on from, if there is none in run_dir yet.
        init_from: run directory or checkpoint whose embedding and stacks the run begins with, perhaps of another task;
            the network's settings and the tokenizer are its own. With another architecture, each stack begins as the
            stack of its name, or as the only one. None: new weights.
        init_cross_attention: what cross-attention begins as where the stack of init_from has none: as self_attention of
            its layer (Zhang et al. 2025, T5Gemma), or as new weights.
        match: what this run shall have in common with the reference: params or active_params (depth, width and d_ff are
            solved), train_flops, tokens or wall_time (the number of updates is). None: nothing is solved.
        reference: an architecture (this very configuration with it), the directory of a finished run, or a number, the
            amount itself.
        test_weights: whether the last or the best weights by validation are tested.
        compile: whether training runs blocks and losses as torch.compile translates them.
        not_finite: what a loss or gradient that is not finite does: stop the run, or skip that update (and count it).
    """

    shape: Shape = field(default_factory=Shape)
    block: Block = field(default_factory=Block)
    heads: Heads = field(default_factory=Heads)
    batch: BatchConfig = field(default_factory=BatchConfig)
    model: dict[str, Any] = MISSING
    frames: dict[str, Any] = MISSING
    patches: dict[str, Any] = MISSING
    task: dict[str, Any] = MISSING
    data: dict[str, Any] = MISSING
    tokenizer: dict[str, Any] = MISSING
    optimizer: dict[str, Any] = MISSING
    scheduler: dict[str, Any] = MISSING
    trainer: dict[str, Any] = MISSING
    logger: dict[str, Any] = MISSING
    callbacks: dict[str, Any] = MISSING
    seed: int = 1
    run_dir: str = MISSING
    resume: str = "auto"
    init_from: str | None = None
    init_cross_attention: str = field(default="self_attention", metadata={"choices": ("self_attention", "new")})
    match: str | None = field(default=None, metadata={"choices": MATCHES})
    reference: str | None = None
    compile: bool = False
    not_finite: str = field(default="stop", metadata={"choices": ("stop", "skip")})
    test_weights: str = field(default="last", metadata={"choices": ("last", "best")})


@dataclass
class DoctorConfig(TrainConfig):
    """The root of ``triptych doctor``: that of a training, and

    Attributes:
        device: name of the GPU to plan for, such as h100 (see ``triptych.planning.gpus.GPUS``); None: this machine.
    """

    device: str | None = None


TRAINER = {"accelerator": "auto", "precision": None}
"""Of ``trainer``, what ``evaluate`` and ``predict`` have, by default: the GPU if there is one, else the CPU; and the
precision of the training."""


@dataclass
class EvaluateConfig:
    """The root of ``triptych evaluate``.

    Attributes:
        checkpoint: file, or run directory (its newest checkpoint).
        data: another corpus than the one of the training, or other settings of that one; none: the same.
        eval_size: examples of a batch; None: as in training (in bf16 another size changes the last digits).
        num_beams: of the beam search; None: as in the training's configuration, also for the next two.
        length_penalty: see ``triptych.models.generation.BeamSearch``.
        early_stopping: see ``triptych.models.generation.BeamSearch``.
        bleu_tokenizer: of sacrebleu; None: as in training.
        rouge_tokenizer: google, whitespace or characters; None: as in training.
        trainer: where it is computed, and how; see ``TRAINER``.
    """

    checkpoint: str = MISSING
    data: dict[str, Any] = field(default_factory=dict)
    eval_size: int | None = None
    num_beams: int | None = None
    length_penalty: float | None = None
    early_stopping: Any = None
    bleu_tokenizer: str | None = None
    rouge_tokenizer: str | None = None
    trainer: dict[str, Any] = field(default_factory=TRAINER.copy)


@dataclass
class PredictConfig:
    """The root of ``triptych predict``.

    Attributes:
        checkpoint: file, or run directory (its newest checkpoint).
        input: text file, an input a line; - is standard input.
        output: file to write; - is standard output.
        batch_size: inputs at a time.
        max_new_tokens: the most tokens to write for an input; None: as in the training's configuration.
        num_beams: of the beam search; None: as in the training's configuration, also for the next two.
        length_penalty: see ``triptych.models.generation.BeamSearch``.
        early_stopping: see ``triptych.models.generation.BeamSearch``.
        num_return_sequences: how many of the best answers to write for an input, with their scores; None: the best
            alone, without.
        temperature: 0: the likeliest token each time; above: sampling. None: 0, and 1 where images are drawn.
        top_k: sample from the k likeliest tokens; 0: from all.
        top_p: sample from the likeliest tokens that together have this probability.
        seed: of the sampling.
        classes: what a matching of images and texts chooses from, in words; None: what the training's configuration
            says, or the classes of its data.
        trainer: where it is computed, and how; see ``TRAINER``.
    """

    checkpoint: str = MISSING
    input: str = "-"
    output: str = "-"
    batch_size: int = 64
    max_new_tokens: int | None = None
    num_beams: int | None = None
    length_penalty: float | None = None
    early_stopping: Any = None
    num_return_sequences: int | None = None
    temperature: float | None = None
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 1
    classes: list[str] | None = None
    trainer: dict[str, Any] = field(default_factory=TRAINER.copy)


def precision_of(config: DictConfig) -> str:
    """``trainer.precision`` in full."""
    return full_precision(str(config.trainer.precision))


def full_precision(given: str) -> str:
    """A precision in full: Lightning takes short forms too, as text or as numbers."""
    in_full = {"16": "16-mixed", "bf16": "bf16-mixed", "32": "32-true", "64": "64-true", "None": "32-true"}
    return in_full.get(given, given)


ACCELERATORS = ("auto", "cpu", "gpu", "cuda", "mps")
