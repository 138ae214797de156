"""The shared blocks. Plain PyTorch: nothing here knows Lightning, Hydra, data or tasks."""

from triptych.nn.attention import MultiHeadAttention, attend
from triptych.nn.block import Block
from triptych.nn.embedding import Embedding, PatchEmbedding
from triptych.nn.feed_forward import FeedForward
from triptych.nn.head import Head
from triptych.nn.kernels.cross_entropy import Targets
from triptych.nn.kv_cache import KeyValueCache
from triptych.nn.masks import Visibility
from triptych.nn.network import Network
from triptych.nn.packing import Documents
from triptych.nn.positions import RelativeBias, RopeScaling, Rotary, sinusoids
from triptych.nn.stack import Stack

__all__ = [
    "Block",
    "Documents",
    "Embedding",
    "FeedForward",
    "Head",
    "KeyValueCache",
    "MultiHeadAttention",
    "Network",
    "PatchEmbedding",
    "RelativeBias",
    "RopeScaling",
    "Rotary",
    "Stack",
    "Targets",
    "Visibility",
    "attend",
    "sinusoids",
]
