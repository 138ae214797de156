"""The shared blocks. Plain PyTorch: nothing here knows Lightning, Hydra, data or tasks."""

from triptych.nn.attention import MultiHeadAttention, attend
from triptych.nn.block import Block
from triptych.nn.cache import KeyValueCache
from triptych.nn.documents import Documents
from triptych.nn.embedding import Embedding, PatchEmbedding
from triptych.nn.feed_forward import FeedForward
from triptych.nn.head import Head
from triptych.nn.loss import Targets
from triptych.nn.masks import Visibility
from triptych.nn.network import Network
from triptych.nn.position import RelativeBias, RopeScaling, Rotary, sinusoids
from triptych.nn.prepacked import prepacked
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
    "prepacked",
    "sinusoids",
]
