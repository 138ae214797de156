"""What a training step is measured to take without any memory, against real steps and against the formula."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from formula_on_cpu import OnCpu
from parts import POSITIONS, QK_NORMS, RESIDUALS, make_stack
from small_models import build
from triptych.models import DecoderOnly, EncoderOnly
from triptych.nn import Head, LayerNorm, PatchEmbedding, Recurrence
from triptych.nn.feed_forward import ACTIVATIONS
from triptych.planning.memory import gradient_bytes
from triptych.planning.peak_memory import LiveMemoryTracker, is_masked, measure_peak, training_loss
from triptych.tasks.precision import PRECISIONS

ARCHITECTURES = ["encoder_only", "decoder_only", "full"]
FORMULA_POSITIONS = ["none", "learned", "sinusoidal", "rotary", "relative_bias"]


def real_peak(model: Any, precision: str, shape: tuple[int, ...], documents: Any = None) -> int:
    """Of a step with numbers."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    with LiveMemoryTracker([*model.parameters(), *model.buffers(), *gradients]) as living:
        training_loss(model.train(), PRECISIONS[precision], shape, torch.device("cpu"), documents).backward()
    return living.most


def on_meta(make: Callable[[], Any], precision: str) -> Any:
    with torch.device("meta"):
        return make().to(PRECISIONS[precision].dtype)


def some_options(draw: Callable[..., Any]) -> dict[str, Any]:
    return {
        "d_model": draw(32, 64),
        "max_length": 150,
        "position": draw(*FORMULA_POSITIONS),
        "pool": draw("none", "mean", "last"),
        "num_outputs": draw(11, 200),
        "head_options": draw({}, {"transform": "tanh"}, {"transform": "gelu", "norm": LayerNorm, "bias": "fixed"}),
        "num_kv_heads": draw(None, 1, 2),
        "head_dim": draw(None, 12),
        "d_ff": draw(48, 128),
        "norm": draw("layer_norm", "rms_norm"),
        "residual": draw("pre_norm", "post_norm"),
        "embed_norm": draw(False, True),
        "activation": draw(*ACTIVATIONS),
        "gated": draw(False, True),
        "sliding_windows": draw(None, [8, None], [8]),
        "dropout": draw(0.0, 0.1),
        "attention_dropout": draw(0.0, 0.1),
        "feed_forward_dropout": draw(0.0, 0.1),
    }


def images(architecture: str, **options: Any) -> Any:
    """Patches of 2x3 pixels in two channels: 8 of them and [cls]."""
    embedding = PatchEmbedding(image_size=[4, 12], patch_size=[2, 3], num_channels=2, d_model=32)
    causal = architecture == "decoder_only"
    stack = make_stack(num_layers=2, causal=causal, max_length=9, d_model=32, num_heads=4, d_ff=64, **options)
    head = Head(d_model=32, num_outputs=5, pooling="last")
    if causal:
        return DecoderOnly(embedding=embedding, decoder=stack, head=head)
    return EncoderOnly(embedding=embedding, encoder=stack, head=head)


class TestRealSteps:
    @settings(max_examples=10)
    @given(data=st.data())
    def test_as_many_bytes_as_with_numbers(self, data: st.DataObject) -> None:
        """To the byte, whatever the blocks, packed or not; but mean and deviation of a norm that reads 16 bits are
        float32, and 16 bits in torch's fake kernel."""

        def draw(*values: Any) -> Any:
            return data.draw(st.sampled_from(values))

        architecture, precision = draw(*ARCHITECTURES), draw(*PRECISIONS)
        options = some_options(draw) | {
            "num_layers": draw(1, 2), "activation_checkpointing": draw(False, True), "position": draw(*POSITIONS),
            "qk_norm": draw(*QK_NORMS), "softcap": draw(None, 2.0), "residual": draw(*RESIDUALS),
        }  # fmt: skip
        shape = (draw(1, 3), draw(32, 50, 150), draw(32, 64) if architecture == "full" else 0)
        documents = draw(None, ([50, 20, 31], [9, 30, 32] if shape[2] else []))
        model = build(architecture, **options).to(PRECISIONS[precision].dtype)
        expected = real_peak(model, precision, shape, documents)
        network = on_meta(lambda: build(architecture, **options), precision)
        attentions = options["num_layers"] * (3 if architecture == "full" else 1)
        rows = {None: 0, "head": attentions * 2 * 4, "all": attentions * 2}[options["qk_norm"]]  # of queries and keys
        sublayers = options["num_layers"] * (5 if architecture == "full" else 2)
        rows += sublayers * (options["residual"] in ("sandwich_norm", "res_post_norm")) + (
            "norm" in options["head_options"]
        )
        tokens = sum(shape[1:]) * shape[0] if documents is None else sum(map(sum, documents))
        statistics = 2 * 2 * tokens * rows if precision.endswith("-mixed") else 0
        measured = measure_peak(network, PRECISIONS[precision], shape, documents)
        assert measured == pytest.approx(expected, abs=statistics, rel=0)
        assert all(parameter.device.type == "meta" and parameter.grad is None for parameter in network.parameters())

    @pytest.mark.parametrize("architecture", ["encoder_only", "decoder_only"])
    @pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
    def test_of_images(self, architecture: str, precision: str) -> None:
        network = on_meta(lambda: images(architecture), precision)
        expected = real_peak(images(architecture), precision, (7, 2, 4, 12))
        assert measure_peak(network, PRECISIONS[precision], (7, 2, 4, 12)) == expected

    @pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "64-true", "bf16-true"])
    @pytest.mark.parametrize("architecture", ARCHITECTURES)
    def test_of_tied_tables_and_windows_of_long_texts(self, architecture: str, precision: str) -> None:
        def make() -> Any:
            return build(architecture, tie_word_embeddings=True, sliding_windows=[16], position="rotary", d_model=32)

        shape = (2, 150, 140 if architecture == "full" else 0)
        expected = real_peak(make().to(PRECISIONS[precision].dtype), precision, shape)
        assert measure_peak(on_meta(make, precision), PRECISIONS[precision], shape) == expected

    @pytest.mark.parametrize("architecture", ARCHITECTURES)
    @pytest.mark.parametrize(("cell", "least"), [("tanh", 0.9), ("gru", 0.9), ("lstm", 0.25)])
    def test_of_recurrences(self, architecture: str, cell: str, least: float) -> None:
        """Without numbers the padding is unknown, so it is computed, too; and the workspace of oneDNN's LSTM is not
        counted."""

        def make() -> Any:
            return build(architecture, d_model=64, max_length=150, attends=partial(Recurrence, cell=cell))

        shape = (4, 100, 100 if architecture == "full" else 0)
        expected = real_peak(make(), "32-true", shape)
        assert least * expected <= measure_peak(on_meta(make, "32-true"), PRECISIONS["32-true"], shape) <= expected


class TestFormula:
    @pytest.fixture(scope="class")
    def build(self) -> Callable[..., Any]:
        """An argument of the next test, whose signature decides its examples."""
        return build

    @pytest.mark.nightly
    @settings(max_examples=8)
    @given(data=st.data())
    def test_a_deeper_network_takes_what_the_formula_says(self, build: Callable[..., Any], data: st.DataObject) -> None:
        """Two layers more; so what a kernel needs for a moment, of which the formula knows nothing, cancels out. With
        activation checkpoints the peak may be in the backward pass, without autocast's copies of the other layers, or
        after that of the decoder, without its inputs."""

        def draw(*values: Any) -> Any:
            return data.draw(st.sampled_from(values))

        architecture, precision = draw(*ARCHITECTURES), draw("32-true", "bf16-mixed", "64-true", "bf16-true")
        options, checkpoints = some_options(draw), draw(False, True)
        shape = (draw(1, 5), draw(32, 128, 150), draw(32, 64) if architecture == "full" else 0)
        formula = OnCpu(PRECISIONS[precision])

        def both(num_layers: int) -> tuple[int, int, int]:
            def make() -> Any:
                return build(architecture, **options, num_layers=num_layers, activation_checkpointing=checkpoints)

            network = on_meta(make, precision)
            counted = formula.of_batch(network, *shape, padded=is_masked(network))
            return measure_peak(network, PRECISIONS[precision], shape), sum(counted), counted.copies

        measured, counted, copies = (more - less for less, more in zip(both(4), both(6), strict=True))
        of_decoder = 2 * shape[0] * shape[1] * options["d_model"] * PRECISIONS[precision].weight
        gone = copies + of_decoder * (architecture == "full") if checkpoints else 0
        assert (counted - gone) * 0.98 <= measured <= counted * 1.02

    @pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true"])
    def test_of_a_whole_network(self, precision: str) -> None:
        """With the gradient of the output layer, which the loss computes beside that of the batch before."""
        options: dict[str, Any] = {"d_model": 256, "num_heads": 8, "num_layers": 8, "d_ff": 1024, "max_length": 512}
        network = on_meta(lambda: build("decoder_only", **options, num_outputs=5000), precision)
        counted = sum(OnCpu(PRECISIONS[precision]).of_batch(network, 4, 512)) + gradient_bytes(network.head.output)
        states = (
            3 * 4 * 512 * 256 * PRECISIONS[precision].weight
        )  # of the last layer, those that are chosen, and scaled
        assert measure_peak(network, PRECISIONS[precision], (4, 512, 0)) == pytest.approx(counted + states, rel=0.02)
