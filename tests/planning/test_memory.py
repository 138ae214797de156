"""What a training takes, against what torch really keeps."""

import weakref
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from torch import Tensor

from formula_on_cpu import OnCpu
from parts import make_stack
from small_models import build
from triptych.config import build as build_node
from triptych.models import DecoderOnly, EncoderOnly
from triptych.models.flops import count_parameters, parameters_by_part
from triptych.nn import Embedding, Head, PatchEmbedding, Rotary, Targets
from triptych.nn.feed_forward import ACTIVATIONS
from triptych.nn.kernels import cross_entropy as loss
from triptych.planning.activations import Activations, BatchBytes, unknown_parts
from triptych.planning.memory import (
    Memory,
    MemoryBreakdown,
    average_bytes,
    gradient_bytes,
    optimizer_bytes,
    smallest_gpu_count,
)
from triptych.planning.peak_memory import LiveMemoryTracker
from triptych.tasks.precision import PRECISIONS

OPTIMIZERS = sorted(path.stem for path in (Path(__file__).parents[2] / "conf" / "optimizer").glob("*.yaml"))
ARCHITECTURES = ["encoder_only", "decoder_only", "full"]
VOCAB = 11


def kept_of(model: Any, inputs: Sequence[Tensor | None], precision: str) -> int:
    """Bytes of the tensors that autograd keeps of a forward and its loss, each once, besides parameters and buffers."""
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    kept: list[weakref.ref[Tensor]] = []  # what a part drops when it is done is not kept

    def pack(tensor: Tensor) -> Tensor:
        kept.append(weakref.ref(tensor))
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed"),
    ):
        if model.head.pooling == "none":
            number = inputs[1 if model.architecture == "full" else 0].numel()
            zeros = torch.zeros(number, dtype=torch.long)
            total = model.train()(*inputs, targets=Targets(torch.arange(number), zeros, 0.0))
        else:
            logits = model.train()(*inputs)
            zeros = torch.zeros(len(logits), dtype=torch.long)
            total = F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), zeros)
    alive = [tensor for of_one in kept if (tensor := of_one()) is not None]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in alive}
    assert total.requires_grad  # it is what keeps them
    bytes_kept = sum(size for place, size in storages.items() if place not in own)
    if model.head.pooling == "none":  # of the output layer there is the gradient, counted as such, and no longer a copy
        bytes_kept -= gradient_bytes(model.head.output)
        bytes_kept += 2 * model.head.output.weight.numel() * (precision == "bf16-mixed")
    return bytes_kept


def left_by(model: Any, tokens: Tensor) -> int:
    """Bytes that are there after a forward."""
    with LiveMemoryTracker([*model.parameters()]) as alive:
        logits = model.train()(tokens)
        assert logits.requires_grad  # it is what keeps them
        return alive.now


def some_texts(rows: int, length: int) -> tuple[Tensor, Tensor]:
    return torch.zeros(rows, length, dtype=torch.long), torch.ones(rows, length, dtype=torch.bool)


def optimizer_of(name: str) -> Any:
    node = OmegaConf.load(Path(__file__).parents[2] / f"conf/optimizer/{name}.yaml")
    node.pop("defaults", None)
    return build_node(OmegaConf.create({"optimizer": node}), "optimizer")


def memory_of(
    model: Any,
    *,
    precision: str = "32-true",
    on_gpu: bool = False,
    length: int = 32,
    source: int = 0,
    padded: bool = False,
    average: int = 0,
) -> Memory:
    formula = (Activations if on_gpu else OnCpu)(PRECISIONS[precision])

    def of_rows(rows: int) -> BatchBytes:
        return formula.of_batch(model, rows, length, source, padded=padded)

    return Memory(model, optimizer_bytes(model, optimizer_of("adamw")), of_rows, average)


class TestActivations:
    @settings(max_examples=40)
    @given(data=st.data())
    def test_as_autograd_keeps_them(self, data: st.DataObject) -> None:
        """The formula is within 2 % of what is kept, for every option of the blocks."""

        def draw(*values: Any) -> Any:
            return data.draw(st.sampled_from(values))

        architecture, precision = draw(*ARCHITECTURES), draw("32-true", "bf16-mixed", "64-true", "bf16-true")
        model = build(
            architecture,
            d_model=draw(32, 64),
            num_layers=draw(1, 3),
            max_length=150,
            position=draw(
                "none", "learned", "sinusoidal", "rotary", partial(Rotary, partial_rotary_factor=0.5), "relative_bias"
            ),
            pool=draw("none", "mean", "last"),
            num_outputs=draw(VOCAB, 200),
            num_kv_heads=draw(None, 1, 2),
            head_dim=draw(None, 12),
            d_ff=draw(48, 128),
            norm=draw("layer_norm", "rms_norm"),
            residual=draw("pre_norm", "post_norm"),
            embed_norm=draw(False, True),
            activation=draw(*ACTIVATIONS),
            gated=draw(False, True),
            sliding_windows=draw(None, [8, None], [8]),
            dropout=draw(0.0, 0.1),
            attention_dropout=draw(0.0, 0.1),
            feed_forward_dropout=draw(0.0, 0.1),
        ).to(PRECISIONS[precision].dtype)
        rows, length, source = draw(1, 5), draw(32, 50, 128, 150), draw(32, 64, 128) if architecture == "full" else 0
        padded = architecture == "encoder_only" or model.head.pooling != "none"
        memory = memory_of(model, precision=precision, length=length, source=source, padded=padded)
        counted = memory.ddp(1, rows)
        tokens, mask = some_texts(rows, length)
        inputs = [tokens, mask if padded else None]
        if source:
            sources, source_mask = some_texts(rows, source)
            inputs = [sources, tokens, source_mask, inputs[1]]
        kept = kept_of(model, inputs, precision)
        assert counted.activations + counted.copies == pytest.approx(kept, rel=0.02)

    @settings(max_examples=15)
    @given(data=st.data())
    def test_within_windows(self, data: st.DataObject) -> None:
        """Of texts of whole blocks and of others, and of one that is too short for blocks."""

        def draw(*values: Any) -> Any:
            return data.draw(st.sampled_from(values))

        architecture, precision = draw(*ARCHITECTURES), draw("32-true", "bf16-mixed", "64-true", "bf16-true")
        length, source = draw(191, 192, 193, 300), draw(192, 200) if architecture == "full" else 0
        model = build(
            architecture, d_model=32, num_layers=2, max_length=300, position=draw("none", "rotary"),
            num_kv_heads=draw(None, 2), head_dim=draw(None, 12), sliding_windows=draw([48], [10, 48]),
            attention_dropout=draw(0.0, 0.1),
        ).to(PRECISIONS[precision].dtype)  # fmt: skip
        rows, padded = draw(1, 3), architecture == "encoder_only"
        counted = memory_of(model, precision=precision, length=length, source=source, padded=padded).ddp(1, rows)
        tokens, mask = some_texts(rows, length)
        inputs = [tokens, mask if padded else None]
        if source:
            sources, source_mask = some_texts(rows, source)
            inputs = [sources, tokens, source_mask, None]
        assert counted.activations + counted.copies == pytest.approx(kept_of(model, inputs, precision), rel=0.02)

    def test_with_activation_checkpointing(self) -> None:
        """What a forward leaves behind is less by all that the blocks keep, but for what goes into each."""

        def of(num_layers: int, *, checkpoints: bool) -> tuple[int, int]:
            sizes = {"d_model": 64, "num_layers": num_layers, "max_length": 64, "d_ff": 256, "dropout": 0.1}
            model = build("decoder_only", **sizes, activation_checkpointing=checkpoints)
            return left_by(model, some_texts(8, 64)[0]), memory_of(model, length=64).ddp(1, 8).activations

        plain, formula = of(4, checkpoints=False)
        block = formula - of(3, checkpoints=False)[1]
        less, other_formula = of(4, checkpoints=True)
        assert plain - less == pytest.approx(formula - (other_formula - block), rel=0.02)
        assert plain - less > 3 * block

    @pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "64-true", "bf16-true"])
    def test_of_an_output_layer_in_chunks(self, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """A chunk of it is there together with all else."""
        options = {"d_model": 64, "num_outputs": 3000, "max_length": 64, "num_layers": 4, "d_ff": 512}
        model = build("decoder_only", **options).to(PRECISIONS[precision].dtype)
        monkeypatch.setattr(loss, "CHUNK_BYTES", 0)
        monkeypatch.setattr(loss, "FEWEST_ROWS", 64)
        tokens, labels = some_texts(5, 64)[0], torch.zeros(320, dtype=torch.long)
        targets = Targets(torch.arange(320), labels, 0.0)
        memory = memory_of(model, precision=precision, length=64).ddp(1, 5)
        with (
            LiveMemoryTracker([*model.parameters()]) as alive,
            torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed"),
        ):
            model.train()(tokens, targets=targets)
        counted = memory.activations + memory.copies + memory.logits + gradient_bytes(model.head.output)
        states = 3 * 320 * 64 * PRECISIONS[precision].weight  # of the last layer, those that are chosen, and scaled
        assert counted + states == pytest.approx(alive.most, rel=0.02)

    def test_of_images(self) -> None:
        """Patches of 2x3 pixels in two channels: 8 of them and [cls]."""
        embedding = PatchEmbedding(image_size=[4, 12], patch_size=[2, 3], num_channels=2, d_model=32)
        stack = make_stack(num_layers=2, causal=False, max_length=9, d_model=32, num_heads=4, d_ff=64)
        model = EncoderOnly(embedding=embedding, encoder=stack, head=Head(d_model=32, num_outputs=5, pooling="first"))
        images = torch.zeros(7, 2, 4, 12)
        kept = kept_of(model, [images, None], "32-true")
        counted = memory_of(model, length=9, padded=True).ddp(1, 7)
        assert counted.activations == pytest.approx(kept, rel=0.02)

    @pytest.mark.parametrize(("heads", "width", "length"), [(8, 64, 32), (16, 512, 100)])
    def test_as_published(self, heads: int, width: int, length: int) -> None:
        """Korthikanti et al. 2022, equation 1: 34 s b h bytes a layer in two bytes, with dropout, gelu and d_ff = 4 d;
        besides, the log-sum-exp of each head and two numbers of each norm, in float32."""

        def layers(number: int) -> int:
            with torch.device("meta"):
                options = {"num_heads": heads, "d_ff": 4 * width, "dropout": 0.1, "activation": "gelu"}
                model = build("decoder_only", d_model=width, num_layers=number, max_length=128, **options)
            return Activations(PRECISIONS["bf16-true"])(model, 3, length)

        published = 34 * length * 3 * width
        assert layers(5) - layers(4) == published + 3 * length * (4 * heads + 2 * 8)

    def test_llama_by_hand(self) -> None:
        """LLaMA 7B on GPUs under autocast, every number from its published shape."""
        d, f, heads, layers, vocab, s = 4096, 11008, 32, 32, 32000, 2048
        block = 4 * d * d + 3 * d * f + 2 * d
        outside = 2 * vocab * d + d
        weights = 4 * (layers * block + outside)
        with torch.device("meta"):
            options: dict[str, Any] = {"norm": "rms_norm", "activation": "silu", "gated": True, "bias": False}
            stack = make_stack(
                num_layers=layers, d_model=d, num_heads=heads, d_ff=f, causal=True, position="rotary", **options
            )
            embedding, head = Embedding(vocab_size=vocab, d_model=d), Head(d_model=d, num_outputs=vocab)
            model = DecoderOnly(embedding=embedding, decoder=stack, head=head)
        memory = memory_of(model, precision="bf16-mixed", on_gpu=True, length=s)
        tensors = layers * 9 + 3
        state = 2 * weights + 4 * tensors  # two moments, and the number of steps of each tensor
        copies = 2 * (layers * (4 * d * d + 3 * d * f) + vocab * d)
        norm = 4 * d + 4
        # read by one; its product; q, k, result, its copy; statistics
        attention = 2 * d + 2 * 3 * d + 2 * 4 * d + 4 * heads
        feed_forward = 2 * 2 * d + 2 * 4 * f  # read by two; silu's argument and result, up, their product
        position = 8 + layers * (attention + feed_forward + 2 * norm) + norm + 8 + 4 * d  # place, gradient of its state
        chunk = [
            min(2**29 // (4 * vocab), rows * s) * (2 + 4 + 4) * vocab for rows in (1, 2)
        ]  # logits, twice in float32
        gathered = 2 * 4 * (outside + 2 * block)
        assert memory.ddp(8, 8) == MemoryBreakdown(weights, weights, state, 0, weights, copies, s * position, chunk[0])
        assert memory.fsdp(4, 8) == MemoryBreakdown(
            weights // 4, weights // 4, state // 4, 0, gathered, copies, 2 * s * position, chunk[1]
        )
        eighty = int(79.2 * 2**30)
        assert smallest_gpu_count(memory.ddp, 8, eighty) is None  # four times the weights are 108 GB
        assert memory.fsdp(2, 8).total > 0.9 * eighty >= memory.fsdp(4, 8).total
        assert smallest_gpu_count(memory.fsdp, 8, eighty) == 4


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"norm": "rms_norm", "gated": True, "num_kv_heads": 2, "sliding_windows": [8, None]}, []),
        ({"qk_norm": "head"}, ["qk_norm"]),
        ({"softcap": 2.0}, ["softcap"]),
        ({"position": partial(Rotary, partial_rotary_factor=0.5, local_theta=9.0)}, []),
        ({"position": partial(Rotary, rotate_cross_attention=True)}, ["cross"]),
        ({"position": "alibi"}, ["Alibi"]),
        ({"residual": "parallel"}, ["Parallel"]),
        ({"residual": "sandwich_norm"}, ["SandwichNorm"]),
        ({"residual": "parallel_norms"}, ["ParallelNorms"]),
        ({"residual": "res_post_norm"}, ["ResPostNorm"]),
        ({"first_norm": False}, ["first_norm"]),
        ({"head_options": {"softcap": 2.0}}, ["softcap"]),
    ],
    ids=str,
)
def test_what_the_formula_does_not_know_is_named(options: dict[str, Any], names: list[str]) -> None:
    """It is measured instead."""
    assert unknown_parts(build("decoder_only", **options)) == names


class TestState:
    @pytest.mark.parametrize("name", OPTIMIZERS)
    def test_the_optimizer(self, name: str) -> None:
        """As many bytes as the real optimizer's state after a step."""
        model, make = build("full", tie_word_embeddings=True), optimizer_of(name)
        optimizer = make(model)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        states = optimizer.state_dict()["state"].values()
        real = sum(t.nbytes for state in states for t in state.values() if isinstance(t, Tensor))
        with torch.device("meta"):
            planned = build("full", tie_word_embeddings=True)
        assert optimizer_bytes(planned, make) == real

    @pytest.mark.parametrize("architecture", ARCHITECTURES)
    @pytest.mark.parametrize("tie_word_embeddings", [False, True])
    def test_parts_are_the_whole(self, architecture: str, tie_word_embeddings: bool) -> None:
        model = build(architecture, tie_word_embeddings=tie_word_embeddings, position="learned")
        parts = parameters_by_part(model)
        assert sum(parts.values()) == count_parameters(model)[0]
        assert parts["head"] == (0 if tie_word_embeddings else VOCAB * 16)
        assert parts["embedding"] == VOCAB * 16

    def test_a_validation_under_fsdp_has_all_weights(self) -> None:
        """With short texts, that is more than the blocks at work and their activations."""
        model = build("decoder_only", num_layers=12, d_model=64)
        memory = memory_of(model, length=1)
        batch = memory.ddp(1, 1).activations + memory.ddp(1, 1).logits
        assert memory.fsdp(2, 2).total == memory.fsdp(2, 2).state + batch
        assert memory.fsdp(2, 2).exchange == gradient_bytes(model) - batch

    def test_a_moving_average_is_one_more_copy(self) -> None:
        model = build("decoder_only")
        numbers = sum(p.numel() for p in model.parameters()) + 24 * 16
        for dtype in (torch.float32, torch.bfloat16):  # in float32 whatever the weights are in
            average = average_bytes(model.to(dtype))
            plain, averaged = (memory_of(model, average=size).ddp(1, 2) for size in (0, average))
            assert averaged.total - plain.total == 4 * numbers
            assert averaged.weights == dtype.itemsize * numbers


class TestFits:
    def test_the_least_number_that_divides_the_rows(self) -> None:
        """1,000 bytes that everyone has and 600 for each row, on devices of 3,000 bytes, 2,700 of which count: two rows
        each, so 6 of 12; of 10 rows, 5; of 7, only all 7."""

        def footprint(processes: int, rows: int) -> MemoryBreakdown:
            return MemoryBreakdown(1000, 0, 0, 0, 0, 0, 600 * (rows // processes), 0)

        assert [smallest_gpu_count(footprint, rows, 3000) for rows in (1, 2, 12, 10, 7)] == [1, 1, 6, 5, 7]
        assert smallest_gpu_count(footprint, 12, 1777) is None
