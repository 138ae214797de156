"""Small models to test with, and batches for them."""

from typing import Any

import torch
from torch import Tensor

from parts import make_stack
from triptych.models import DecoderOnly, EncoderDecoder, EncoderOnly, PrefixLM
from triptych.nn import Embedding, Head, Stack


def randomize(module: Any) -> Any:
    """Adds noise to every parameter (the zeros and ones of a fresh module would hide mistakes), and ``eval()``."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return module.eval()


def build(
    architecture: str,
    *,
    vocab_size: int = 11,
    d_model: int = 16,
    num_layers: int = 2,
    max_length: int = 24,
    position: str = "sinusoidal",
    pool: str = "none",
    num_outputs: int | None = None,
    tie_word_embeddings: bool = False,
    head_options: dict[str, Any] | None = None,
    **block: Any,
) -> Any:
    """Builds a small model; every argument has a default but the architecture."""

    def stack(*, causal: bool, cross_attention: bool = False) -> Stack:
        options = {"num_heads": 4, "d_ff": 24} | block
        return make_stack(
            num_layers=num_layers, d_model=d_model, causal=causal, cross_attention=cross_attention, position=position,
            max_length=max_length, **options,
        )  # fmt: skip

    embedding = Embedding(vocab_size=vocab_size, d_model=d_model)
    head = Head(d_model=d_model, num_outputs=num_outputs or vocab_size, pooling=pool, **(head_options or {}))
    if architecture == "encoder_only":
        return EncoderOnly(
            embedding=embedding, encoder=stack(causal=False), head=head, tie_word_embeddings=tie_word_embeddings
        )
    if architecture in ("decoder_only", "prefix_lm"):
        network = DecoderOnly if architecture == "decoder_only" else PrefixLM
        decoder = stack(causal=network.is_causal)
        return network(embedding=embedding, decoder=decoder, head=head, tie_word_embeddings=tie_word_embeddings)
    return EncoderDecoder(
        embedding=embedding, encoder=stack(causal=False), decoder=stack(causal=True, cross_attention=True), head=head,
        tie_word_embeddings=tie_word_embeddings,
    )  # fmt: skip


def random_model(architecture: str, **options: Any) -> Any:
    """``build`` and ``randomize``, in float64: two ways to the same result may then be compared closely."""
    return randomize(build(architecture, **options)).double()


def pad(rows: list[Tensor], *, left: bool = False) -> tuple[Tensor, Tensor]:
    """Makes one batch of sequences, padded with random tokens, and a mask that is True at the real ones."""
    longest = max(row.shape[1] for row in rows)
    tokens, mask = torch.randint(11, (len(rows), longest)), torch.zeros(len(rows), longest, dtype=torch.bool)
    for i, row in enumerate(rows):
        place = slice(longest - row.shape[1], None) if left else slice(row.shape[1])
        tokens[i, place], mask[i, place] = row[0], True
    return tokens, mask
