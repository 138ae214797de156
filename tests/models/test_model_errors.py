"""Mistakes in a configuration name the option to change."""

from typing import Any

import pytest
import torch

from small_models import build
from triptych.models import DecoderOnly, EncoderDecoder, EncoderOnly
from triptych.nn import Embedding, Head, Stack


def parts() -> dict[str, Any]:
    return {"embedding": Embedding(vocab_size=11, d_model=16), "head": Head(d_model=16, num_outputs=11)}


def stack(*, causal: bool, cross_attention: bool = False) -> Stack:
    return Stack(num_layers=1, d_model=16, num_heads=4, d_ff=24, causal=causal, cross_attention=cross_attention)


class TestWrongStack:
    def test_encoder_only(self) -> None:
        with pytest.raises(ValueError, match=r"model\.encoder\.causal=true"):
            EncoderOnly(**parts(), encoder=stack(causal=True))

    def test_decoder_only(self) -> None:
        with pytest.raises(ValueError, match=r"model\.decoder\.causal=false"):
            DecoderOnly(**parts(), decoder=stack(causal=False))

    @pytest.mark.parametrize(
        ("encoder", "decoder", "message"),
        [
            ({"causal": True}, {"causal": True, "cross_attention": True}, r"model\.encoder\.causal=true"),
            ({"causal": False}, {"causal": False, "cross_attention": True}, r"model\.decoder\.causal=false"),
            ({"causal": False}, {"causal": True}, r"model\.decoder\.cross_attention=false"),
        ],
    )
    def test_encoder_decoder(self, encoder: dict[str, bool], decoder: dict[str, bool], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            EncoderDecoder(**parts(), encoder=stack(**encoder), decoder=stack(**decoder))

    def test_tables_of_two_widths(self) -> None:
        stacks = {"encoder": stack(causal=False), "decoder": stack(causal=True, cross_attention=True)}
        with pytest.raises(ValueError, match=r"model\.source_embedding\.d_model=8 and d_model=16"):
            EncoderDecoder(**parts(), **stacks, source_embedding=Embedding(vocab_size=11, d_model=8))

    @pytest.mark.parametrize("model", [EncoderOnly, DecoderOnly])
    def test_cross_attention_without_a_memory(self, model: type[EncoderOnly] | type[DecoderOnly]) -> None:
        """Cross-attention without a memory would look at the stack's own positions, future ones included."""
        name = "encoder" if model is EncoderOnly else "decoder"
        with pytest.raises(ValueError, match=rf"model\.{name}\.cross_attention=true"):
            model(**parts(), **{name: stack(causal=model is DecoderOnly, cross_attention=True)})

    def test_an_encoder_with_cross_attention(self) -> None:
        encoder, decoder = stack(causal=False, cross_attention=True), stack(causal=True, cross_attention=True)
        with pytest.raises(ValueError, match=r"model\.encoder\.cross_attention=true"):
            EncoderDecoder(**parts(), encoder=encoder, decoder=decoder)


@pytest.mark.parametrize("architecture", ["encoder_only", "decoder_only", "full"])
class TestShape:
    def test_heads_that_do_not_divide_the_width(self, architecture: str) -> None:
        with pytest.raises(ValueError, match=r"shape\.num_heads=7 does not divide shape\.d_model=16; .* 8"):
            build(architecture, num_heads=7)

    def test_a_context_longer_than_the_table(self, architecture: str) -> None:
        for position in ("learned", "sinusoidal", "rotary", "relative_bias", "none"):
            model, tokens = build(architecture, position=position, max_length=8), torch.zeros(1, 9, dtype=torch.long)
            inputs = (tokens, tokens) if architecture == "full" else (tokens,)
            if position in ("learned", "sinusoidal"):
                with pytest.raises(ValueError, match=r"9 positions, but shape\.max_length=8"):
                    model(*inputs)
            else:
                model(*inputs)
