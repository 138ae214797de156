"""The typed schema of the configuration. ``config/build.py`` builds objects from it.

Tested by tests/config/test_build.py and tests/config/test_conf.py.
"""
# Takes a DictConfig: the nodes are open, each typed by the class that its _target_ names.

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING, DictConfig


@dataclass
class ShapeConfig:
    """The size of a network, shared by every architecture.

    Attributes:
        d_model: model width.
        num_layers: blocks per stack (the full model has two stacks).
        num_heads: attention heads per layer.
        head_dim: width of each head; None: d_model / num_heads.
        d_ff: width of the feed-forward layers.
        vocab_size: size of the vocabulary; None: that of the tokenizer.
        max_length: maximum number of tokens in a sequence. It is also the number of positions in a learned or
            sinusoidal table, and the length of the windows of a long text.
    """

    d_model: int = 128
    num_layers: int = 2
    num_heads: int = 4
    head_dim: int | None = None
    d_ff: int = 512
    vocab_size: int | None = None
    max_length: int = 128


@dataclass
class BlockConfig:
    """The parts of a Transformer block, shared by every stack. Each part is a config group (``block/position=rotary``)
    with its own options (``block.position.theta=5e5``).

    Attributes:
        position: position encoding.
        attention: attention mechanism.
        feed_forward: feed-forward layer.
        residual: residual connection and placement of the norm.
        norm: normalization layer, also after the last block.
        embed_norm: whether embeddings are normalized before the first block.
        first_norm: whether the first block normalizes the input of its attention; not needed after embed_norm.
        bias: whether linear layers have a bias.
        scale_embedding: whether token embeddings are multiplied by sqrt(d_model).
        num_token_types: number of token type embeddings, for example 2 for pairs of texts; 0: none.
        tie_word_embeddings: whether the output layer shares the token embedding, if the outputs are tokens.
        dropout: dropout of the embeddings and of the output of each sub-layer.
        token_dropout: probability that a token embedding is dropped in training (its position is kept).
        activation_checkpointing: whether the backward pass recomputes each block, which saves memory and takes longer.
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
    tie_word_embeddings: bool = True
    dropout: float = 0.1
    token_dropout: float = 0.0
    activation_checkpointing: bool = False


PARTS = ("position", "attention", "feed_forward", "residual", "norm")
"""The nodes of ``block`` that are config groups; each stack may override them."""


@dataclass
class HeadsConfig:
    """The output heads; ``model.head`` is one of them, depending on the task.

    Attributes:
        tokens: predicts tokens of the vocabulary.
        classes: predicts a class for the whole text.
        tags: predicts a tag for each word.
    """

    tokens: dict[str, Any] = MISSING
    classes: dict[str, Any] = MISSING
    tags: dict[str, Any] = MISSING


@dataclass
class BatchConfig:
    """How examples are batched.

    Attributes:
        global_size: examples per optimizer step, over all ranks and accumulated batches; None: max_tokens limits it.
        max_tokens: maximum number of tokens per optimizer step, source and target together, without padding; None: size
            sets the number of examples.
        packing: whether the sequences of a training batch are packed into one row without padding. Sequences do not
            attend to each other. Results are the same except for rounding and dropout masks. Validation and test
            batches are padded. None: packs on CPUs if padding would be at least 10 % of the positions.
        eval_batch_size: batch size of validation and test; does not change any metric.
        eval_stride: distance in tokens between the windows of a long text in validation and test. The overlap with the
            previous window is context and is not scored again. None: shape.max_length, without overlap.
        num_workers: worker processes that collate batches; 0: none.
        too_long: handling of examples longer than shape.max_length tokens: error, truncate, or drop. With drop,
            validation and test examples are truncated instead.
        bpe_dropout: probability of BPE-dropout (Provilkov et al. 2020), with tokenizer=bpe: each training example is
            tokenized several times, and each time every merge is left out with this probability. (The paper draws for
            each merge in each word instead.) 0: off.
        bpe_dropout_copies: number of tokenized copies of each training example per epoch, if bpe_dropout is not 0.
    """

    global_size: int | None = 128
    max_tokens: int | None = None
    packing: bool | None = None
    eval_batch_size: int = 256
    eval_stride: int | None = None
    num_workers: int = 0
    too_long: str = field(default="error", metadata={"choices": ("error", "truncate", "drop")})
    bpe_dropout: float = 0.0
    bpe_dropout_copies: int = 8


STACKS = {
    "full": ("encoder", "decoder"),
    "encoder_only": ("encoder",),
    "decoder_only": ("decoder",),
    "prefix_lm": ("decoder",),
}
"""The stacks of each architecture, by their names in its configuration."""
ARCHITECTURES = tuple(STACKS)
MATCHES = ("params", "active_params", "train_flops", "tokens", "wall_time")
"""The choices of ``match``; see ``triptych.planning.matching``."""


@dataclass
class TrainConfig:
    """The root of a training run. Nodes without a type here are typed by the class that they build.

    Attributes:
        audio_embedding: embedding of audio input (``triptych.nn.FrameEmbedding``).
        image_embedding: embedding of image input (``triptych.nn.PatchEmbedding``).
        seed: random seed of the weights, the order of the examples and dropout.
        run_dir: output directory.
        resume: auto (resume from the latest good checkpoint in run_dir, if it has one), never (start from scratch), or
            a run directory or checkpoint to resume from if run_dir has none.
        init_from: run directory or checkpoint that initializes the embedding and the stacks; its task may differ. The
            network settings and the tokenizer are taken from it. If the architecture differs, each stack is initialized
            from the stack of the same name, or from the only one. None: random weights.
        init_cross_attention: initialization of cross-attention that init_from does not have: self_attention (from the
            self-attention of the same layer; Zhang et al. 2025, T5Gemma), or new (random weights).
        match: the quantity to match with the reference: params or active_params (solves depth, width and d_ff), or
            train_flops, tokens or wall_time (solves the number of steps). None: off.
        reference: an architecture (this configuration with it), the directory of a finished run, or the target value.
        test_weights: whether to test the last weights or the best ones by validation.
        compile: whether to compile blocks and losses with torch.compile in training.
        on_nonfinite: reaction to a NaN or infinite loss or gradient: stop the run, or skip the step (and count it).
    """

    shape: ShapeConfig = field(default_factory=ShapeConfig)
    block: BlockConfig = field(default_factory=BlockConfig)
    heads: HeadsConfig = field(default_factory=HeadsConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    model: dict[str, Any] = MISSING
    audio_embedding: dict[str, Any] = MISSING
    image_embedding: dict[str, Any] = MISSING
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
    on_nonfinite: str = field(default="stop", metadata={"choices": ("stop", "skip")})
    test_weights: str = field(default="last", metadata={"choices": ("last", "best")})


@dataclass
class DoctorConfig(TrainConfig):
    """The root of ``triptych doctor``: that of a training run, and the GPU to plan for.

    Attributes:
        device: name of the GPU, such as h100 (see ``triptych.planning.gpus.GPUS``); None: this computer.
    """

    device: str | None = None


TRAINER = {"accelerator": "auto", "precision": None}
"""The ``trainer`` settings of ``evaluate`` and ``predict``, with defaults: the GPU if available, and the precision of
the training run."""


@dataclass
class EvaluateConfig:
    """The root of ``triptych evaluate``.

    Attributes:
        checkpoint: checkpoint file, or run directory (its latest checkpoint).
        data: another corpus, or changed settings of the corpus of the training run; empty: that corpus.
        batch_size: batch size; None: as in training (in bf16 another size changes the last digits).
        num_beams: beams of the beam search; None: as in training, also for the next two.
        length_penalty: see ``triptych.models.generation.BeamSearch``.
        early_stopping: see ``triptych.models.generation.BeamSearch``.
        bleu_tokenizer: tokenizer of sacreBLEU; None: as in training.
        rouge_tokenizer: google, whitespace or characters; None: as in training.
        method: scores data=minimal_pairs; see ``triptych.tasks.Predictor.score``. None: the default of the task.
        trainer: accelerator and precision; see ``TRAINER``.
    """

    checkpoint: str = MISSING
    data: dict[str, Any] = field(default_factory=dict)
    batch_size: int | None = None
    num_beams: int | None = None
    length_penalty: float | None = None
    early_stopping: Any = None
    bleu_tokenizer: str | None = None
    rouge_tokenizer: str | None = None
    method: str | None = None
    trainer: dict[str, Any] = field(default_factory=TRAINER.copy)


@dataclass
class PredictConfig:
    """The root of ``triptych predict``.

    Attributes:
        checkpoint: checkpoint file, or run directory (its latest checkpoint).
        input: text file with one input per line; - is standard input.
        output: output file; - is standard output.
        batch_size: inputs per batch.
        max_new_tokens: maximum number of tokens to generate per input; None: as in training.
        num_beams: beams of the beam search; None: as in training, also for the next two.
        length_penalty: see ``triptych.models.generation.BeamSearch``.
        early_stopping: see ``triptych.models.generation.BeamSearch``.
        num_return_sequences: number of sequences to return per input, with their scores; None: only the best sequence,
            without its score.
        temperature: 0: greedy decoding; above 0: sampling. None: 1 for image generation, otherwise 0.
        top_k: sample from the k most likely tokens; 0: from all.
        top_p: sample from the most likely tokens whose probabilities add up to this.
        seed: random seed of the sampling.
        classes: class descriptions for matching images and texts; None: those of the training run.
        surprisal: whether to write -ln p of each word of the input, in place of predictions.
        method: computes the surprisal; see ``triptych.tasks.Predictor.score``. None: the default of the task.
        trainer: accelerator and precision; see ``TRAINER``.
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
    surprisal: bool = False
    method: str | None = None
    trainer: dict[str, Any] = field(default_factory=TRAINER.copy)


def precision_of(config: DictConfig) -> str:
    """The full name of ``trainer.precision``."""
    return full_precision(str(config.trainer.precision))


def full_precision(given: str) -> str:
    """The full name of a precision; Lightning also accepts short forms, as text or numbers."""
    in_full = {"16": "16-mixed", "bf16": "bf16-mixed", "32": "32-true", "64": "64-true", "None": "32-true"}
    return in_full.get(given, given)


ACCELERATORS = ("auto", "cpu", "gpu", "cuda", "mps")
