"""``check_part`` passes our own parts, and names what is wrong with broken ones; so does the doctor. An attention of
one's own equals torch's wherever a mask may come from."""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_module
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig
from torch import Tensor, nn
from torch.testing import assert_close

from command_line import with_parts
from parts import POSITIONS, RESIDUALS, make_sizes
from small_models import random_model, randomize
from triptych.config import ConfigError, TrainConfig
from triptych.config.build import check_kind
from triptych.nn import (
    AttentionMask,
    GatedFeedForward,
    LinformerAttention,
    LongformerAttention,
    MultiHeadAttention,
    PairwiseAttention,
    PerformerAttention,
    Position,
    ReformerAttention,
    RMSNorm,
    SubquadraticAttention,
)
from triptych.planning.check_results import check_own_parts
from triptych.report.attention_maps import record_attention
from triptych.testing import check_part


class Own(PairwiseAttention):
    """Softmax attention, written out."""

    def attend_pairs(self, q: Any, k: Any, v: Any, mask: Any, bias: Any) -> Tensor:
        scores = q @ k.mT * self.head_dim**-0.5
        if bias is not None:
            scores = scores + bias
        weights: Tensor = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        return weights @ v


class Deaf(Own):
    """Ignores the bias of positions."""

    def attend_pairs(self, q: Any, k: Any, v: Any, mask: Any, bias: Any) -> Tensor:
        return super().attend_pairs(q, k, v, mask, None)


class Blind(Own):
    """Ignores the mask."""

    def attend_pairs(self, q: Any, k: Any, v: Any, mask: Any, bias: Any) -> Tensor:
        return super().attend_pairs(q, k, v, torch.ones_like(mask), bias)


class Leaky(MultiHeadAttention):
    """What one writes first: a causal mask, and no thought of packed rows."""

    def _attend(self, q: Any, k: Any, v: Any, attention_mask: AttentionMask, bias: Any) -> Tensor:
        scores = q @ k.mT * self.head_dim**-0.5
        if not self.is_cross:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1 + k.shape[2] - q.shape[2]).bool(), -1e9)
        weights: Tensor = scores.softmax(-1)
        return weights @ v


class Forward(MultiHeadAttention):
    """Overrides all of it, for self-attention alone."""

    def forward(self, x: Any, *, attention_mask: Any, bias: Any = None, angles: Any = None, cache: Any = None) -> Any:
        return super().forward(x, attention_mask=attention_mask, bias=bias, angles=angles, cache=cache)


class Stretched(Position):
    """Counts positions from the first of the row: wrong with a cache, and in packed rows."""

    def add(self, x: Any, start: int, places: Any) -> Tensor:
        result: Tensor = x + torch.outer(torch.arange(x.shape[1]), torch.arange(x.shape[2])).sin()
        return result


class TimeNorm(nn.Module):
    """Normalises over the text."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True, correction=0).clamp(min=1e-3)


OURS = {
    "multi_head": {},
    "windows": {"attention": partial(MultiHeadAttention, sliding_windows=[2, None], num_kv_heads=2, softcap=2.0)},
    **{
        part.__name__: {"attention": part}
        for part in (LinformerAttention, PerformerAttention, ReformerAttention, LongformerAttention, Own)
    },
    "own": {"attention": partial(Own, sliding_windows=[3, None], num_kv_heads=2)},
    **{name: {"position": part} for name, part in POSITIONS.items()},
    **{name: {"residual": part} for name, part in RESIDUALS.items()},
    "gated": {"feed_forward": GatedFeedForward},
    "rms_norm": {"norm": RMSNorm},
}


@pytest.mark.parametrize("parts", OURS.values(), ids=OURS)
def test_our_own_parts_pass(parts: dict[str, Any]) -> None:
    check_part(**parts)


@pytest.mark.parametrize(
    ("parts", "faults"),
    [
        ({"attention": Deaf}, {"bias"}),
        ({"attention": Blind}, {"causality", "padding", "packing", "cross-attention", "cache"}),
        ({"attention": Leaky}, {"padding", "packing", "bias", "cross-attention"}),
        ({"attention": Forward}, {"cross-attention: TypeError"}),
        ({"position": Stretched}, {"packing", "cache", "padding"}),
        ({"norm": TimeNorm}, {"causality", "padding", "packing", "cache"}),
        ({"feed_forward": partial(GatedFeedForward, gates=2)}, {"construction: TypeError"}),
    ],
    ids=lambda value: str(next(iter(value.values()))) if isinstance(value, dict) else "",
)
def test_a_broken_part_is_named_with_each_fault(parts: dict[str, Any], faults: set[str]) -> None:
    with pytest.raises(ValueError, match=": ") as caught:
        check_part(**parts)
    said = str(caught.value)
    assert all(f"{fault}: " in said for fault in faults), said
    owner = next(iter(parts.values()))
    if not isinstance(owner, partial):
        assert said.startswith(f"{owner.__module__}.{owner.__qualname__}: ")


def test_what_a_part_does_not_support_is_not_checked() -> None:
    check_part(attention=LinformerAttention)
    with pytest.raises(ValueError, match="a decoder would attend to future tokens"):
        check_part(attention=LinformerAttention, causal=True)


class TestPairwise:
    @pytest.mark.parametrize("architecture", ["encoder_only", "decoder_only", "prefix_lm", "full"])
    @pytest.mark.parametrize("position", ["rotary", "relative_bias", "alibi"])
    def test_equals_torch_in_each_architecture(self, architecture: str, position: str) -> None:
        options = {"position": position, "num_kv_heads": 2, "sliding_windows": [3, None]}
        ours = random_model(architecture, **options)
        own = random_model(architecture, attends=Own, **options)
        own.load_state_dict(ours.state_dict())
        tokens, mask = torch.randint(11, (3, 6)), torch.ones(3, 6, dtype=torch.bool)
        mask[1, 4:] = False
        given = (tokens.flip(1), tokens, mask, mask) if architecture == "full" else (tokens, mask)
        assert_close(own(*given)[mask], ours(*given)[mask], rtol=1e-10, atol=1e-10)

    def test_its_weights_are_recorded(self) -> None:
        ours, own = (
            random_model("full", position="relative_bias"),
            random_model("full", position="relative_bias", attends=Own),
        )
        own.load_state_dict(ours.state_dict())
        tokens = torch.randint(11, (2, 9))  # more than a head is wide
        with record_attention(ours) as expected, torch.no_grad():
            ours(tokens, tokens)
        with record_attention(own) as found, torch.no_grad():
            own(tokens, tokens)
        for name, module in own.named_modules():
            if isinstance(module, MultiHeadAttention):
                assert_close(found[module], expected[ours.get_submodule(name)])

    def test_weights_that_do_not_give_the_output_are_not_recorded(self) -> None:
        class Squared(Own):
            def attend_pairs(self, q: Any, k: Any, v: Any, mask: Any, bias: Any) -> Tensor:
                return super().attend_pairs(q, k, v, mask, bias).square()

        attention = randomize(Squared(make_sizes()))
        with record_attention(attention) as weights:
            attention(torch.randn(2, 5, 16), attention_mask=AttentionMask(causal=True))
        assert weights == {}


def composed(*overrides: str) -> DictConfig:
    ConfigStore.instance().store(name="train_schema", node=TrainConfig)
    with initialize_config_module("triptych.conf", version_base="1.3"):
        return compose("train", overrides=["run_dir=unused", "task=language_modeling", *overrides])


class TestConfigured:
    @pytest.fixture(autouse=True)
    def _importable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TRIPTYCH_ALLOW", "test_testing")
        monkeypatch.setitem(sys.modules, "test_testing", sys.modules[__name__])
        for part in (Own, Leaky, Narrow, Deaf):
            monkeypatch.setattr(part, "__module__", "test_testing")

    def test_the_doctor_checks_parts_from_outside(self) -> None:
        def found(model: str, attention: str) -> list[str]:
            return check_own_parts(
                with_parts(composed(f"model={model}", f"block.attention._target_=test_testing.{attention}"))
            )

        assert found("full", "Own") == ["test_testing.Own"]
        assert check_own_parts(with_parts(composed("model=full"))) == []
        with pytest.raises(ValueError, match=r"^test_testing\.Leaky: padding: .*; packing: a document in a packed row"):
            found("decoder_only", "Leaky")
        with pytest.raises(ValueError, match=r"^test_testing\.Deaf: bias: "):
            found("encoder_only", "Deaf")

    def test_a_constructor_without_cross_is_rejected_at_once(self) -> None:
        config = DictConfig({"block": {"attention": {"_target_": "test_testing.Narrow"}}})
        with pytest.raises(ConfigError, match=r"Narrow\(sizes, layer\): expected \(sizes, layer, cross\), then"):
            check_kind(config, "block.attention", Callable[..., MultiHeadAttention])


class Narrow(Own):
    """Without ``cross``."""

    def __init__(self, sizes: Any, layer: int = 0, *, dropout: float = 0.0) -> None:
        super().__init__(sizes, layer, dropout=dropout)


@pytest.mark.parametrize("part", [SubquadraticAttention, PairwiseAttention])
def test_the_method_to_override_is_public_and_documented(part: type) -> None:
    methods = [name for name, method in vars(part).items() if callable(method) and not name.startswith("_")]
    assert len(methods) == 1
    assert "Args:" in (getattr(part, methods[0]).__doc__ or "")
