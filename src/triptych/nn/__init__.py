"""The shared blocks. Plain PyTorch: nothing here knows Lightning, Hydra, data or tasks."""

from triptych.nn.attention import EfficientAttention, MultiHeadAttention, PairwiseAttention, attend
from triptych.nn.block import Block
from triptych.nn.embedding import Embedding, PatchEmbedding
from triptych.nn.feed_forward import FeedForward, GatedFeedForward
from triptych.nn.frames import FrameEmbedding
from triptych.nn.head import Head
from triptych.nn.kernels.cross_entropy import Targets
from triptych.nn.kv_cache import KeyValueCache
from triptych.nn.linformer import Linformer
from triptych.nn.longformer import Longformer
from triptych.nn.masks import Visibility
from triptych.nn.network import Network
from triptych.nn.norm import LayerNorm, RMSNorm
from triptych.nn.packing import Documents
from triptych.nn.performer import Performer
from triptych.nn.positions import Alibi, Learned, Position, Relative, RopeScaling, Rotary, Sinusoidal, sinusoids
from triptych.nn.reformer import Reformer
from triptych.nn.residual import Parallel, ParallelNorms, PostNorm, PreNorm, Residual, ResPost, Sandwich
from triptych.nn.sizes import Sizes
from triptych.nn.stack import Stack

__all__ = [
    "Alibi",
    "Block",
    "Documents",
    "EfficientAttention",
    "Embedding",
    "FeedForward",
    "FrameEmbedding",
    "GatedFeedForward",
    "Head",
    "KeyValueCache",
    "LayerNorm",
    "Learned",
    "Linformer",
    "Longformer",
    "MultiHeadAttention",
    "Network",
    "PairwiseAttention",
    "Parallel",
    "ParallelNorms",
    "PatchEmbedding",
    "Performer",
    "Position",
    "PostNorm",
    "PreNorm",
    "RMSNorm",
    "Reformer",
    "Relative",
    "ResPost",
    "Residual",
    "RopeScaling",
    "Rotary",
    "Sandwich",
    "Sinusoidal",
    "Sizes",
    "Stack",
    "Targets",
    "Visibility",
    "attend",
    "sinusoids",
]
