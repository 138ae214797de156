"""The three architectures: short compositions of the shared blocks, usable from plain PyTorch."""

from triptych.models.decoder_only import DecoderOnly
from triptych.models.encoder_decoder import EncoderDecoder
from triptych.models.encoder_only import EncoderOnly
from triptych.models.generation.continuation import Continuation
from triptych.models.prefix_decoder import PrefixDecoder
from triptych.models.two_towers import TwoDecoders, TwoEncoders, TwoTowers

__all__ = [
    "Continuation",
    "DecoderOnly",
    "EncoderDecoder",
    "EncoderOnly",
    "PrefixDecoder",
    "TwoDecoders",
    "TwoEncoders",
    "TwoTowers",
]
