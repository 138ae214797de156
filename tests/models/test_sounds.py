"""Networks that read frames of sounds: beside others, with each kind of position; decoding with a cache."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from cases import pairs_by_day
from parts import POSITIONS
from small_models import random_model
from triptych.models import DecoderOnly, EncoderDecoder, EncoderOnly, PrefixLM
from triptych.nn import FrameEmbedding, Network

assert_close = partial(torch.testing.assert_close, atol=1e-5, rtol=1e-5)
VOCAB, MELS, WIDTH = 11, 5, 16
LENGTHS = (9, 4, 6)
ARCHITECTURES = ("full", "decoder_only", "prefix_lm")
every_position = pytest.mark.parametrize("position", POSITIONS)


def frames(*lengths: int) -> tuple[Tensor, Tensor]:
    """Of sounds of these lengths, with something behind their ends."""
    generator = torch.Generator().manual_seed(0)
    content = torch.randn(len(lengths), max(lengths), MELS, dtype=torch.float64, generator=generator)
    return content, torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def audio_network(architecture: str, position: str = "rotary", **options: Any) -> Any:
    """A network that reads texts, made to read frames too; of an encoder, frames alone."""
    model = random_model(architecture, position=position, d_model=WIDTH, vocab_size=VOCAB, **options)
    torch.manual_seed(1)
    embedding = FrameEmbedding(rate=8000, num_mels=MELS, d_model=WIDTH).double()
    for parameter in embedding.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    kinds: dict[str, type[Network]] = {
        "full": EncoderDecoder, "decoder_only": DecoderOnly, "prefix_lm": PrefixLM,
        "encoder_only": EncoderOnly,
    }  # fmt: skip
    stacks = {name: getattr(model, name) for name in ("encoder", "decoder") if hasattr(model, name)}
    if architecture == "encoder_only":
        return EncoderOnly(embedding=embedding, head=model.head, **stacks)
    return kinds[architecture](  # type: ignore[call-arg]
        embedding=model.embedding, source_embedding=embedding, head=model.head, **stacks
    )


def answer(network: Any, tokens: Tensor, source: Tensor, mask: Tensor | None) -> Tensor:
    if isinstance(network, EncoderDecoder):
        return network(source, tokens, mask)
    prefix = {"prefix": torch.ones(len(tokens), dtype=torch.long)} if isinstance(network, PrefixLM) else {}
    return network(tokens, source=source, source_mask=mask, **prefix)


@every_position
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_text_of_a_sound_is_what_it_is_by_itself(architecture: str, position: str) -> None:
    network = audio_network(architecture, position)
    (content, mask), tokens = frames(*LENGTHS), torch.randint(VOCAB, (3, 5))
    together = answer(network, tokens, content, mask)
    assert together.shape == (3, 5, VOCAB)
    for row, x, length, text in zip(together, content, LENGTHS, tokens, strict=True):
        assert_close(answer(network, text[None], x[None, :length], None)[0], row)
    other = content.clone()
    other[:, 0] += 1
    assert not torch.allclose(answer(network, tokens, other, mask), together)
    behind = content + (~mask)[..., None]
    assert_close(answer(network, tokens, behind, mask), together)


@pytest.mark.parametrize(
    ("position", "pool", "architecture"),
    pairs_by_day([*POSITIONS], ["first", "mean", "last", "none"], ["encoder_only", "decoder_only"]),
)
def test_a_sound_by_itself(architecture: str, position: str, pool: str) -> None:
    """Without a text: classes, or an answer at each position."""
    network = audio_network(architecture, position)
    if architecture == "decoder_only":
        network = DecoderOnly(embedding=network.source_embedding, decoder=network.decoder, head=network.head)
    network.head.pooling = pool
    content, mask = frames(*LENGTHS)
    together = network(content, mask)
    for row, x, length in zip(together, content, LENGTHS, strict=True):
        alone = network(x[None, :length])[0]
        assert_close(row[: len(alone)] if pool == "none" else row, alone)


@every_position
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_decoding_with_a_cache_is_reading_it_all(architecture: str, position: str) -> None:
    network = audio_network(architecture, position).eval()
    (content, mask), tokens = frames(*LENGTHS), torch.randint(VOCAB, (3, 6))
    expected = answer(network, tokens, content, mask)
    if architecture == "full":
        next_token = network.continuation(content, mask, capacity=6)
    else:
        next_token = network.continuation(None, capacity=6, source=content, source_mask=mask)
    with torch.no_grad():
        for place in range(6):
            assert_close(next_token(tokens[:, place : place + 1]), expected[:, place])
            if place == 2:  # some end
                kept = torch.tensor([2, 0])
                next_token.select(kept)
                tokens, expected = tokens[kept], expected[kept]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_sounds_join_others_that_are_decoded(architecture: str) -> None:
    network = audio_network(architecture).eval()
    (content, mask), tokens = frames(*LENGTHS), torch.randint(VOCAB, (3, 6))
    expected = answer(network, tokens, content, mask)

    def begin(rows: slice) -> Any:
        sounds = (content[rows], mask[rows])
        if architecture == "full":
            return network.continuation(*sounds, capacity=6)
        return network.continuation(None, capacity=6, source=sounds[0], source_mask=sounds[1])

    with torch.no_grad():
        first, later = begin(slice(2)), begin(slice(2, 3))
        for place in range(2):
            first(tokens[:2, place : place + 1])
        later(tokens[2:, :1])
        first.join(later)
        both = torch.cat((tokens[:2, 2], tokens[2:, 1]))[:, None]
        assert_close(first(both), torch.cat((expected[:2, 2], expected[2:, 1])))


def test_mistakes() -> None:
    decoder = random_model("decoder_only", d_model=WIDTH)
    narrow = FrameEmbedding(rate=8000, num_mels=MELS, d_model=8).double()
    with pytest.raises(ValueError, match=r"model.source_embedding.d_model=8 and d_model=16: both must be equal"):
        DecoderOnly(embedding=decoder.embedding, source_embedding=narrow, decoder=decoder.decoder, head=decoder.head)
    frames_alone = FrameEmbedding(rate=8000, num_mels=MELS, d_model=WIDTH).double()
    with pytest.raises(ValueError, match=r"model.tie_word_embeddings=true: frames have no table of tokens"):
        DecoderOnly(embedding=frames_alone, decoder=decoder.decoder, head=decoder.head, tie_word_embeddings=True)
    network = audio_network("decoder_only")
    with pytest.raises(ValueError, match="with a source the prompts must not be padded; expected mask=None"):
        network.continuation(torch.ones(3, 2, dtype=torch.bool), capacity=6, source=frames(*LENGTHS)[0])
