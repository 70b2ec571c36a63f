"""Positions:  x + p_t (sinusoidal, learned, binary),  R_t q, R_t k (rotary),  score + b(i − j).

How attention knows positions.  A kind acts on the input, on queries and keys, or on the scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from threefold.errors import ThreefoldError, nearest
from threefold.kernels import ops
from threefold.kernels.parameter_cache import ParameterCache
from threefold.kernels.replay.activity import active_recorder
from threefold.memory.attention import Bias


class Positions(nn.Module):
    """No positions: the base of the kinds below."""

    @property
    def bias(self) -> Bias | None:
        """A function from distances to what is added to the scores; None: nothing."""
        return None

    def forward(self, x: Tensor, position: Tensor, lengths: Tensor | None) -> Tensor:
        """Add positions to the elements of x [B, L, width].

        Rows start at `position` [B] and have `lengths` elements (None: all of L).
        """
        return x

    def rotate(self, query: Tensor, key: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys [B, L, H, size], rotated by their positions."""
        return query, key


class Sinusoidal(Positions):
    """p_t = [sin(t ω), cos(t ω)] alternating, ω_i = base^{−2i/width} (Vaswani et al. 2017)."""

    def __init__(self, base: float = 10_000.0) -> None:
        super().__init__()
        self.base = base

    def forward(self, x: Tensor, position: Tensor, lengths: Tensor | None) -> Tensor:
        return x + sinusoids(element_positions(x, position), x.shape[-1], self.base).to(x.dtype)


class Learned(Positions):
    """p_t is row t of a table of `max_length` rows; longer sequences are refused."""

    def __init__(self, width: int, max_length: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(max_length, width).normal_(std=0.02))

    def forward(self, x: Tensor, position: Tensor, lengths: Tensor | None) -> Tensor:
        if (
            active_recorder() is not None
        ):  # the recorded step refuses positions beyond the table itself
            return x + self.table[element_positions(x, position)]
        limit = len(self.table)
        count = x.shape[1] if lengths is None else lengths
        # Positions on the meta device have no values.
        last = 0 if position.is_meta else max((position + count).tolist(), default=0)
        if last > limit:
            raise ThreefoldError(
                f"learned positions: element {last} is beyond the table of max_length={limit}; "
                "give fewer elements, or make the mixer with a larger max_length"
            )
        return x + self.table[element_positions(x, position).clamp(max=limit - 1)]


class Binary(Positions):
    """p_t: the bits of t as −1 and 1, the lowest in channel 0; as many as fit into the width."""

    def forward(self, x: Tensor, position: Tensor, lengths: Tensor | None) -> Tensor:
        bits = torch.arange(min(x.shape[-1], 63), device=x.device)
        ones = (element_positions(x, position).unsqueeze(-1) >> bits) & 1
        signs = torch.zeros_like(x)
        signs[..., : len(bits)] = 2 * ones.to(x.dtype) - 1
        return x + signs


class Rotary(Positions):
    """Pairs of channels i and i + size/2 turned by t · base^{−2i/size} (Su et al. 2021)."""

    def __init__(self, base: float = 10_000.0) -> None:
        super().__init__()
        self.base = base
        self.derived: ParameterCache[Tensor] = ParameterCache()

    def rotate(self, query: Tensor, key: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        key_values = query.shape[-1], query.device, self.base
        frequencies = self.derived.of([], lambda: rotary_frequencies(*key_values), *key_values)
        return ops.rotary(query, key, position, frequencies)


class ALiBi(Positions):
    """score − 2^{−8h/H} · |i − j| in head h = 1 … H (Press et al. 2022).

    If H is not a power of two, as the authors do: the slopes of the next lower power, then every
    other slope of the next higher one.
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    @property
    def bias(self) -> Bias:
        return Bias(self.slope, slopes=self.slopes)

    def slopes(self) -> Tensor:
        """The slopes [H], float64."""
        return torch.tensor(alibi_slopes(self.heads), dtype=torch.float64)

    def slope(self, distance: Tensor) -> Tensor:
        slopes = self.slopes().to(distance.device)
        return -slopes.view(-1, 1, 1) * distance.abs().unsqueeze(-3)


class Relative(Positions):
    """score + b[h, bucket(i − j)], learned (Raffel et al. 2020, T5).

    Half of the buckets are for single distances, the others grow wider up to `furthest`; with
    `both_sides` half of each are for later elements.
    """

    def __init__(
        self, heads: int, *, buckets: int = 32, furthest: int = 128, both_sides: bool = False
    ) -> None:
        super().__init__()
        self.furthest, self.both_sides = furthest, both_sides
        self.table = nn.Parameter(torch.empty(buckets, heads).normal_(std=0.02))

    @property
    def bias(self) -> Bias:
        return Bias(self.look_up, constant_from=self.furthest)

    def look_up(self, distance: Tensor) -> Tensor:
        return self.table[self.bucket(distance)].movedim(-1, -3)

    def bucket(self, distance: Tensor) -> Tensor:
        """The bucket index of each distance (position of the query − position of the key)."""
        count, first = len(self.table), torch.zeros_like(distance)
        if self.both_sides:
            count //= 2
            first = (distance < 0) * count
            distance = distance.abs()
        distance = distance.clamp(min=0)
        exact = count // 2
        ratio = (distance.clamp(min=1).double() / exact).log() / math.log(self.furthest / exact)
        far = (exact + (ratio * (count - exact)).long()).clamp(max=count - 1)
        return first + torch.where(distance < exact, distance, far)


POSITIONS = ("none", "sinusoidal", "learned", "binary", "rotary", "alibi", "relative")


def make_positions(
    kind: str,
    width: int,
    heads: int,
    *,
    rotary_base: float = 10_000.0,
    max_length: int | None = None,
    causal: bool = True,
) -> Positions:
    """Make positions by name, one of POSITIONS."""
    if kind == "learned" and (max_length is None or max_length < 1):
        raise ThreefoldError(
            f"learned positions: max_length is {max_length}, expected the length of the longest "
            "sequence, e.g. max_length=1024"
        )
    if kind != "learned" and max_length is not None:
        raise ThreefoldError(
            f"max_length={max_length} needs positions='learned'; {kind!r} has no limit"
        )
    makers: dict[str, Callable[[], Positions]] = {
        "none": Positions,
        "sinusoidal": Sinusoidal,
        "learned": lambda: Learned(width, max_length or 0),
        "binary": Binary,
        "rotary": lambda: Rotary(rotary_base),
        "alibi": lambda: ALiBi(heads),
        "relative": lambda: Relative(heads, both_sides=not causal),
    }
    if kind not in makers:
        raise ThreefoldError(f"unknown positions {kind!r}; {nearest(kind, POSITIONS)}")
    return makers[kind]()


def element_positions(x: Tensor, position: Tensor) -> Tensor:
    """The position of every element of x [B, L, …] in its row, [B, L]."""
    return position.unsqueeze(1) + torch.arange(x.shape[1], device=x.device)


def sinusoids(place: Tensor, width: int, base: float = 10_000.0) -> Tensor:
    """[…, width]: sines in even channels, cosines in odd ones; angles are float64."""
    pairs = torch.arange(-(-width // 2), dtype=torch.float64, device=place.device)
    angle = place.unsqueeze(-1) * base ** (-2 * pairs / width)
    waves = torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)
    return waves[..., :width]


def alibi_slopes(heads: int) -> list[float]:
    """The slopes of all heads."""
    power = 1 << (heads.bit_length() - 1)
    slopes = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    between = [2 ** (-4 * (h + 1) / power) for h in range(0, 2 * power, 2)]
    return slopes + between[: heads - power]


def rotary_frequencies(size: int, device: torch.device, base: float = 10_000.0) -> Tensor:
    """base^{−2i/size} for each pair of channels, float64: radians per element."""
    pairs = torch.arange(size // 2, dtype=torch.float64, device=device)
    return base ** (-2 * pairs / size)


def advance_position(position: Tensor, length: int, lengths: Tensor | None) -> Tensor:
    """The position of each row [B] after `length` elements, or after its own `lengths`."""
    return position + (length if lengths is None else lengths)
