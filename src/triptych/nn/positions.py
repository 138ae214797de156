"""Position schemes, one class each."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from triptych.nn.sizes import Sizes

Angles = tuple[Float[Tensor, "*rows length half"], Float[Tensor, "*rows length half"]]
"""cos and sin of the rotation of every position and frequency."""
MemoryAngles = tuple[Float[Tensor, "*memories source half"], Float[Tensor, "*memories source half"]]
"""cos and sin of the rotation of every position and frequency of a memory."""


class Position(nn.Module):
    """The base class of position schemes, which alone adds no position information.

    Each stack has one scheme for all of its layers. A causal stack without positions can still distinguish them (Haviv
    et al. 2022).

    Args:
        sizes: sizes of the stack.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()

    @property
    def max_positions(self) -> int | None:
        """Maximum number of positions; None: no limit."""
        return None

    @property
    def has_bias(self) -> bool:
        """Whether the scheme adds a bias to scores; windows are then masks of all pairs."""
        return type(self).bias is not Position.bias

    def reset_parameters(self) -> None:
        """Initializes the parameters, if there are any."""

    def add(
        self, x: Float[Tensor, "batch length d_model"], start: int, places: Int[Tensor, "#batch length"] | None
    ) -> Float[Tensor, "batch length d_model"]:
        """Returns the input of the first block.

        Args:
            x: embedded tokens.
            start: position of the first token.
            places: positions of all tokens; None: start, start + 1, ...
        """
        return x

    def angles(self, places: Int[Tensor, "*rows length"], window: int | None = None) -> Angles | None:
        """Returns the rotation of queries and keys at these positions; None: no rotation.

        Args:
            places: positions, shared by all rows or per row, for all heads.
            window: window of the layer; None: no window.
        """
        return None

    def cross_angles(self, places: Int[Tensor, "*rows length"]) -> Angles | None:
        """Returns the same for cross-attention, for queries or for keys of the memory at these positions."""
        return None

    def bias(self, num_queries: int, num_keys: int) -> Float[Tensor, "1 heads queries keys"] | None:
        """Returns the bias of the scores of the last ``num_queries`` of ``num_keys`` positions; None: no bias."""
        return None


class PositionTable(Position):
    """x + P[first + place].

    Args:
        sizes: sizes of the stack; P has ``first`` + max_length rows.
        first: row of the first token.
    """

    table: Tensor

    def __init__(self, sizes: Sizes, *, first: int = 0) -> None:
        super().__init__(sizes)
        if first < 0:
            raise ValueError(f"block.position.first={first}: expected at least 0")
        self.first, self.max_length = first, sizes.max_length

    @property
    def max_positions(self) -> int:
        return self.max_length

    def add(
        self, x: Float[Tensor, "batch length d_model"], start: int, places: Int[Tensor, "#batch length"] | None
    ) -> Float[Tensor, "batch length d_model"]:
        if places is None:
            begin = self.first + start
            return x + self.table[begin : begin + x.shape[1]]
        return x + F.embedding(self.first + places, self.table)


class LearnedPositions(PositionTable):
    """A learned table P (Gehring et al. 2017, section 3.1), or fixed ``sinusoids`` in halves (Whisper's encoder,
    Radford et al. 2022).

    Args:
        sizes: sizes of the stack; P has ``first`` + max_length rows.
        first: row of the first token.
        trained: whether P is trained.
    """

    def __init__(self, sizes: Sizes, *, first: int = 0, trained: bool = True) -> None:
        super().__init__(sizes, first=first)
        self.table = nn.Parameter(torch.empty(first + sizes.max_length, sizes.d_model), requires_grad=trained)

    def reset_parameters(self) -> None:
        """P ~ normal(0, d_model^-1/2), if it is trained."""
        if self.table.requires_grad:
            nn.init.normal_(self.table, std=self.table.shape[1] ** -0.5)
        else:
            self.table.data.copy_(sinusoids(*self.table.shape, halves=True))


class SinusoidalPositions(PositionTable):
    """A table P of ``sinusoids``. Vaswani et al. 2017, section 3.5.

    Args:
        sizes: sizes of the stack; P has ``first`` + max_length rows.
        first: row of the first token.

    Raises:
        ValueError: the width is odd.
    """

    def __init__(self, sizes: Sizes, *, first: int = 0) -> None:
        super().__init__(sizes, first=first)
        self.register_buffer("table", sinusoids(first + sizes.max_length, sizes.d_model), persistent=False)


def sinusoids(num_positions: int, d_model: int, *, halves: bool = False) -> Float[Tensor, "positions d_model"]:
    """PE[p, 2i] = sin(p w_i), PE[p, 2i+1] = cos(p w_i) with w_i = 10000^(-2i / d_model) (Vaswani et al. 2017, section
    3.5); in halves PE[p, i] = sin(p w_i), PE[p, d_model / 2 + i] = cos(p w_i) with w_i = 10000^(-2i / (d_model - 2)),
    so that the last is 1 / 10000 (Whisper, Radford et al. 2022).

    Computed in float64, then rounded.

    Args:
        num_positions: number of rows; positions start at 0.
        d_model: width, even.
        halves: see above.

    Raises:
        ValueError: the width is odd.
    """
    if d_model % 2:
        raise ValueError(f"shape.d_model={d_model}: sinusoidal positions need an even width")
    last = max(d_model - 2, 2) if halves else d_model
    frequencies = 10000.0 ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / last)
    angles = torch.arange(num_positions, dtype=torch.float64)[:, None] * frequencies
    if halves:
        return torch.cat((angles.sin(), angles.cos()), dim=1).float()
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1).float()


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Slower rotations, for texts longer than those in training: w becomes (1 - s) w / factor + s w.

    s is 0 for all frequencies without ``original_length`` L (Chen et al. 2023), else it grows linearly from 0 at
    ``low_rotations`` rotations within L to 1 at ``high_rotations`` (LLaMA 3, Dubey et al. 2024).

    Attributes:
        factor: factor by which rotations are slowed.
        low_rotations: frequencies below it are slowed by the full factor.
        high_rotations: frequencies above it are unchanged.
        original_length: L, in positions.

    Raises:
        ValueError: the factor or length is not positive, or high_rotations is not above low_rotations.
    """

    factor: float
    low_rotations: float = 1.0
    high_rotations: float = 4.0
    original_length: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("factor", self.factor), ("original_length", self.original_length)):
            if value is not None and value <= 0:
                raise ValueError(f"block.position.scaling.{name}={value}: expected more than 0")
        if self.high_rotations <= self.low_rotations:
            raise ValueError(
                f"block.position.scaling.high_rotations={self.high_rotations}: expected more than "
                f"low_rotations={self.low_rotations}"
            )

    def __call__(self, frequencies: Float[Tensor, " half"]) -> Float[Tensor, " half"]:
        """Returns the slower frequencies, in radians per position."""
        if self.original_length is None:
            return frequencies / self.factor
        rotations = self.original_length * frequencies / (2 * math.pi)
        s = ((rotations - self.low_rotations) / (self.high_rotations - self.low_rotations)).clamp(0, 1)
        return (1 - s) * frequencies / self.factor + s * frequencies


class Rotary(Position):
    """Rotates the pairs (i, i + D/2) of queries and keys by the angle p theta^(-2i / D), i < D/2.

    Scores then depend only on the distance of two positions. Su et al. 2021, section 3.4; the pairing is LLaMA's.

    Args:
        sizes: sizes of the stack; D is ``partial_rotary_factor`` times head_dim, even.
        theta: base of the frequencies.
        local_theta: base in layers with a window, without ``scaling`` (Gemma 3, Kamath et al. 2025, section 2;
            ModernBERT, Warner et al. 2024); None: the same in all layers.
        partial_rotary_factor: fraction of each head that is rotated (GPT-NeoX: 0.25, Black et al. 2022, section 2).
        scaling: scaling of the frequencies; None: no scaling.
        rotate_cross_attention: whether to also rotate in cross-attention, queries by their positions and keys by those
            in the memory. (Scores then depend on the difference of the two positions.)

    Raises:
        ValueError: the width is odd, a base is not positive, or the fraction is not in (0, 1].
    """

    def __init__(
        self,
        sizes: Sizes,
        *,
        theta: float = 10000.0,
        local_theta: float | None = None,
        partial_rotary_factor: float = 1.0,
        scaling: RopeScaling | None = None,
        rotate_cross_attention: bool = False,
    ) -> None:
        super().__init__(sizes)
        if not 0 < partial_rotary_factor <= 1:
            raise ValueError(
                f"block.position.partial_rotary_factor={partial_rotary_factor}: expected more than 0 and at most 1"
            )
        width = int(partial_rotary_factor * sizes.head_dim)
        if width % 2 or not width:
            part = ""
            if partial_rotary_factor < 1:
                part = f", of which block.position.partial_rotary_factor={partial_rotary_factor} are {width}"
            raise ValueError(f"head_dim={sizes.head_dim}{part}: rotary positions need an even width of each head")
        for name, value in (("theta", theta), ("local_theta", local_theta)):
            if value is not None and value <= 0:
                raise ValueError(f"block.position.{name}={value}: expected more than 0")
        self.width, self.theta, self.local_theta = width, theta, local_theta
        self.scaling, self.cross = scaling, rotate_cross_attention

    def cross_angles(self, places: Int[Tensor, "*rows length"]) -> Angles | None:
        return self.angles(places) if self.cross else None

    def angles(self, places: Int[Tensor, "*rows length"], window: int | None = None) -> Angles:
        """Returns the angles of ``Position`` in float32 for any network type, computed once for all layers."""
        # In bf16-true Lightning makes bf16 the default type, which a quotient of integers would have.
        exponents = -torch.arange(0, self.width, 2, dtype=torch.float32, device=places.device) / self.width
        if window is not None and self.local_theta is not None:
            frequencies = self.local_theta**exponents
        else:
            frequencies = self.theta**exponents
            frequencies = frequencies if self.scaling is None else self.scaling(frequencies)
        angles = places[..., None].float() * frequencies
        return angles.cos(), angles.sin()


def rotate(
    x: Float[Tensor, "batch heads length head_dim"], angles: Angles
) -> Float[Tensor, "batch heads length head_dim"]:
    """(a, b, c) -> (a cos - b sin, b cos + a sin, c) in each head; a and b have the width of the angles."""
    cos, sin = angles
    width = 2 * cos.shape[-1]
    a, b = x[..., :width].chunk(2, dim=-1)
    turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).type_as(x)
    return turned if width == x.shape[-1] else torch.cat((turned, x[..., width:]), dim=-1)


class RelativeBias(Position):
    """A learned score for each head and bucket of the distance between key and query, added before the softmax.

    Small distances have one bucket each; larger ones share buckets that grow logarithmically. Raffel et al. 2020 (T5),
    section 2.1. One table serves all layers of a stack.

    Args:
        sizes: sizes of the stack; in a causal one all buckets are for past positions.
        num_buckets: number of rows of the table.
        max_distance: distance from which on all share the last bucket.

    Raises:
        ValueError: there are too few buckets, or max_distance is too small.
    """

    def __init__(self, sizes: Sizes, *, num_buckets: int = 32, max_distance: int = 128) -> None:
        super().__init__(sizes)
        self.causal, self.num_buckets, self.max_distance = sizes.causal, num_buckets, max_distance
        fewest = 2 if sizes.causal else 4
        if num_buckets < fewest:
            raise ValueError(f"block.position.num_buckets={num_buckets}: expected at least {fewest}")
        near = num_buckets // fewest
        if max_distance <= near:
            raise ValueError(
                f"block.position.max_distance={max_distance}: expected more than {near}, as many distances have one of "
                f"the {num_buckets} buckets each"
            )
        self.table = nn.Embedding(num_buckets, sizes.num_heads)

    def reset_parameters(self) -> None:
        """Sets all scores to zero."""
        nn.init.zeros_(self.table.weight)

    def buckets(self, num_queries: int, num_keys: int) -> Int[Tensor, "queries keys"]:
        """Returns the bucket of each pair; the queries are the last key positions."""
        device = self.table.weight.device
        queries = torch.arange(num_keys - num_queries, num_keys, device=device)[:, None]
        distance = torch.arange(num_keys, device=device)[None] - queries
        if self.causal:
            size, offset, distance = self.num_buckets, torch.zeros_like(distance), (-distance).clamp(min=0)
        else:
            size = self.num_buckets // 2
            offset, distance = (distance > 0) * size, distance.abs()
        near = size // 2
        # float32 as in the published models: the floor at bucket borders depends on it
        far = torch.log(distance.clamp(min=1).float() / near) / math.log(self.max_distance / near) * (size - near)
        return offset + torch.where(distance < near, distance, (near + far.long()).clamp(max=size - 1))

    def bias(self, num_queries: int, num_keys: int) -> Float[Tensor, "1 heads queries keys"]:
        bias: Tensor = self.table(self.buckets(num_queries, num_keys))
        return bias.permute(2, 0, 1)[None]


class Alibi(Position):
    """Scores fall with the distance: -m_h |i - j| is added to those of head h, in both directions.

    Press et al. 2022, section 3. It has no parameters and extrapolates to longer texts than in training.

    Args:
        sizes: sizes of the stack.
    """

    slopes: Tensor

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.register_buffer("slopes", torch.tensor(alibi_slopes(sizes.num_heads)), persistent=False)

    def bias(self, num_queries: int, num_keys: int) -> Float[Tensor, "1 heads queries keys"]:
        keys = torch.arange(num_keys, device=self.slopes.device)
        distance = (keys[num_keys - num_queries :, None] - keys).abs()
        return -self.slopes.float()[None, :, None, None] * distance


def alibi_slopes(num_heads: int) -> list[float]:
    """m_h = 2^(-8 h / n) for h = 1, ..., n, if n is a power of two.

    Otherwise n is the largest power of two below the number of heads, and the other heads have every second
    slope of 2 n heads, 2^(-4 (2 h - 1) / n), as in the authors' code.
    """
    n = 1 << (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * h / n) for h in range(1, n + 1)]
    return slopes + [2.0 ** (-4 * (2 * h - 1) / n) for h in range(1, num_heads - n + 1)]
