"""The three architectures: short compositions of the shared blocks, usable from plain PyTorch."""

from triptych.models.decoder_only import DecoderOnly
from triptych.models.dual_encoder import DualDecoder, DualEncoder, DualEncoderBase
from triptych.models.encoder_decoder import EncoderDecoder
from triptych.models.encoder_only import EncoderOnly
from triptych.models.generation.incremental_decoder import IncrementalDecoder
from triptych.models.prefix_lm import PrefixLM

__all__ = [
    "DecoderOnly",
    "DualDecoder",
    "DualEncoder",
    "DualEncoderBase",
    "EncoderDecoder",
    "EncoderOnly",
    "IncrementalDecoder",
    "PrefixLM",
]
