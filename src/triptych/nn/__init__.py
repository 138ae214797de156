"""The shared blocks in plain PyTorch, independent of Lightning, Hydra, data and tasks."""

from triptych.nn.attention import MultiHeadAttention, PairwiseAttention, SubquadraticAttention, attend
from triptych.nn.block import Block
from triptych.nn.embedding import Embedding, PatchEmbedding
from triptych.nn.feed_forward import FeedForward, GatedFeedForward, NoFeedForward
from triptych.nn.frames import FrameEmbedding
from triptych.nn.head import Head
from triptych.nn.kernels.cross_entropy import Targets
from triptych.nn.kv_cache import KeyValueCache
from triptych.nn.linformer_attention import LinformerAttention
from triptych.nn.longformer_attention import LongformerAttention
from triptych.nn.masks import AttentionMask
from triptych.nn.network import Network
from triptych.nn.norm import DetachedLayerNorm, DynamicTanh, LayerNorm, NoNorm, RMSNorm
from triptych.nn.packing import PackedLayout
from triptych.nn.performer_attention import PerformerAttention
from triptych.nn.positions import (
    Alibi,
    LearnedPositions,
    Position,
    RelativeBias,
    RopeScaling,
    Rotary,
    SinusoidalPositions,
    sinusoids,
)
from triptych.nn.recurrence import MinGRU, Recurrence
from triptych.nn.reformer_attention import ReformerAttention
from triptych.nn.residual import (
    NoResidual,
    Parallel,
    ParallelNorms,
    PostNorm,
    PreNorm,
    Residual,
    ResPostNorm,
    SandwichNorm,
)
from triptych.nn.shared_attention import SharedAttention
from triptych.nn.sizes import Sizes
from triptych.nn.stack import Stack

__all__ = [
    "Alibi",
    "AttentionMask",
    "Block",
    "DetachedLayerNorm",
    "DynamicTanh",
    "Embedding",
    "FeedForward",
    "FrameEmbedding",
    "GatedFeedForward",
    "Head",
    "KeyValueCache",
    "LayerNorm",
    "LearnedPositions",
    "LinformerAttention",
    "LongformerAttention",
    "MinGRU",
    "MultiHeadAttention",
    "Network",
    "NoFeedForward",
    "NoNorm",
    "NoResidual",
    "PackedLayout",
    "PairwiseAttention",
    "Parallel",
    "ParallelNorms",
    "PatchEmbedding",
    "PerformerAttention",
    "Position",
    "PostNorm",
    "PreNorm",
    "RMSNorm",
    "Recurrence",
    "ReformerAttention",
    "RelativeBias",
    "ResPostNorm",
    "Residual",
    "RopeScaling",
    "Rotary",
    "SandwichNorm",
    "SharedAttention",
    "SinusoidalPositions",
    "Sizes",
    "Stack",
    "SubquadraticAttention",
    "Targets",
    "attend",
    "sinusoids",
]
