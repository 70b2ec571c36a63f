"""How one element acts on a memory S [..., K, V], and how C elements do together.

    Decay     S = Diag(α) S₋ Diag(α') + k⊗v
    Delta     S = (I − β k kᵀ) Diag(α) S₋ + β k⊗v
    RankOne   S = (Diag(α) + a bᵀ) S₋ + k⊗v             o = Sᵀ q

`step` is the definition.  `chunk` summarises C elements as one affine map of the memory before them
(derived in memory/README.md); both are pure functions of tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from threefold.memory.linear.decay import ChunkDecay, accumulate, crossing_scores, scores


class Tokens(NamedTuple):
    """What elements do to the memory; a step has no C axis."""

    query: Tensor  # [..., C, K]
    key: Tensor  # [..., C, K]
    value: Tensor  # [..., C, V]
    log_decay: Tensor | None = None  # [..., C, K or 1]
    log_decay_value: Tensor | None = None  # [..., C, V]
    strength: Tensor | None = None  # [..., C, 1]
    write: Tensor | None = None  # a of the rank-one term, [..., C, K]
    read: Tensor | None = None  # b of the rank-one term, [..., C, K]
    bonus: Tensor | None = None  # [..., C, K]

    def each(self, function: Callable[[Tensor], Tensor]) -> Tokens:
        """`function` applied to every field that is not None."""
        fields = ((name, field) for name, field in self._asdict().items() if field is not None)
        return self._replace(**{name: function(field) for name, field in fields})


class Summary(NamedTuple):
    """C elements as a map of the memory S before them: outputs and the memory after them.

    out = local + out_decay ⊙ (reader S),   S' = decay ⊙ S + written + eraserᵀ (erased S)
    """

    local: Tensor  # [..., C, V]
    reader: Tensor  # [..., C, K]
    written: Tensor  # [..., K, V]
    decay: Tensor | None = None  # broadcasts to [..., K, V]
    out_decay: Tensor | None = None  # [..., C, V]
    eraser: Tensor | None = None  # [..., C, K]
    erased: Tensor | None = None  # [..., C, K]


class Structure(Protocol):
    """The two functions that a structure has."""

    def step(self, memory: Tensor, token: Tokens) -> tuple[Tensor, Tensor]: ...

    def chunk(self, tokens: Tokens) -> Summary: ...


class Decay:
    """No, scalar, per-key or two-sided decay; with `bonus`, RWKV-6's read-out of S₋."""

    def step(self, memory: Tensor, token: Tokens) -> tuple[Tensor, Tensor]:
        before = memory
        memory = decayed(memory, token) + outer(token.key, token.value)
        if token.bonus is None:
            return read(memory, token.query), memory
        now = outer(token.bonus * token.key, token.value)
        return read(before + now, token.query), memory

    def chunk(self, tokens: Tokens) -> Summary:
        query, key, value = tokens.query, tokens.key, tokens.value
        decay = chunk_decay(tokens.log_decay)
        exclusive = tokens.bonus is not None
        now = key if tokens.bonus is None else key * tokens.bonus
        diagonal = (query * now).sum(-1)
        if tokens.log_decay_value is not None:
            return self._two_sided(tokens, decay, diagonal, ChunkDecay(tokens.log_decay_value))
        matrix = scores(query, key, decay, diagonal=diagonal, exclusive=exclusive)
        if decay is None:
            return Summary(matrix @ value, query, key.mT @ value)
        return Summary(
            local=matrix @ value,
            reader=query * (decay.before if exclusive else decay.from_start),
            written=(key * decay.to_end).mT @ value,
            decay=decay.whole.unsqueeze(-1),
        )

    def _two_sided(
        self, tokens: Tokens, decay: ChunkDecay | None, diagonal: Tensor, on_value: ChunkDecay
    ) -> Summary:
        query, key, value = tokens.query, tokens.key, tokens.value
        whole = on_value.whole.unsqueeze(-2)
        local = accumulate(diagonal, crossing_scores(query, key, decay), value, on_value)
        if decay is not None:
            query, key = query * decay.from_start, key * decay.to_end
            whole = whole * decay.whole.unsqueeze(-1)
        written = key.mT @ (value * on_value.to_end)
        return Summary(local, query, written, decay=whole, out_decay=on_value.from_start)


class Delta:
    """The delta rule after an optional scalar or per-key decay: writes v minus what k reads."""

    def step(self, memory: Tensor, token: Tokens) -> tuple[Tensor, Tensor]:
        assert token.strength is not None
        memory = decayed(memory, token)
        correction = token.strength * (token.value - read(memory, token.key))
        memory = memory + outer(token.key, correction)
        return read(memory, token.query), memory

    def chunk(self, tokens: Tokens) -> Summary:
        query, key, strength = tokens.query, tokens.key, tokens.strength
        assert strength is not None
        decay = chunk_decay(tokens.log_decay)
        key_now, key_end, query_now = key, key, query
        if decay is not None:
            key_now, query_now = key * decay.from_start, query * decay.from_start
            key_end = key * decay.to_end
        # (I + β tril(k kᵀ, −1)) u = β (v − (decayed k) S₀): u is what each element really writes.
        overlap = strength * scores(key, key, decay)
        right = strength * torch.cat([tokens.value, key_now], -1)
        sizes = [tokens.value.shape[-1], key.shape[-1]]
        written, erased = torch.split(solve(overlap, right), sizes, -1)
        matrix = scores(query, key, decay, diagonal=(query * key).sum(-1))
        return Summary(
            local=matrix @ written,
            reader=query_now - matrix @ erased,
            written=key_end.mT @ written,
            decay=None if decay is None else decay.whole.unsqueeze(-1),
            eraser=key_end,
            erased=-erased,
        )


class RankOne:
    """Diagonal plus rank one: `read` reads S₋, `write` writes what was read."""

    def step(self, memory: Tensor, token: Tokens) -> tuple[Tensor, Tensor]:
        assert token.write is not None
        assert token.read is not None
        moved = outer(token.write, read(memory, token.read))
        memory = decayed(memory, token) + moved + outer(token.key, token.value)
        return read(memory, token.query), memory

    def chunk(self, tokens: Tokens) -> Summary:
        query, key, value = tokens.query, tokens.key, tokens.value
        a, b = tokens.write, tokens.read
        assert a is not None
        assert b is not None
        decay = chunk_decay(tokens.log_decay)
        a_end, b_now, key_end, query_now = a, b, key, query
        if decay is not None:
            a_end, key_end = a * decay.to_end, key * decay.to_end
            b_now, query_now = b * decay.before, query * decay.from_start
        # (I − tril(b aᵀ, −1)) u = (decayed b) S₀ + tril(b kᵀ, −1) v: u = S₋ᵀ b for each element.
        overlap = -scores(b, a, decay, exclusive=True)
        from_values = scores(b, key, decay, exclusive=True) @ value
        solved = solve(overlap, torch.cat([from_values, b_now], -1))
        moved, reads = torch.split(solved, [value.shape[-1], key.shape[-1]], -1)
        with_a = scores(query, a, decay, diagonal=(query * a).sum(-1))
        with_key = scores(query, key, decay, diagonal=(query * key).sum(-1))
        return Summary(
            local=with_a @ moved + with_key @ value,
            reader=query_now + with_a @ reads,
            written=a_end.mT @ moved + key_end.mT @ value,
            decay=None if decay is None else decay.whole.unsqueeze(-1),
            eraser=a_end,
            erased=reads,
        )


def outer(key: Tensor, value: Tensor) -> Tensor:
    return key.unsqueeze(-1) * value.unsqueeze(-2)


def read(memory: Tensor, query: Tensor) -> Tensor:
    """Sᵀ q."""
    return (query.unsqueeze(-2) @ memory).squeeze(-2)


def decayed(memory: Tensor, token: Tokens) -> Tensor:
    if token.log_decay is not None:
        memory = memory * token.log_decay.exp().unsqueeze(-1)
    if token.log_decay_value is not None:
        memory = memory * token.log_decay_value.exp().unsqueeze(-2)
    return memory


def chunk_decay(log_decay: Tensor | None) -> ChunkDecay | None:
    return None if log_decay is None else ChunkDecay(log_decay)


def solve(strictly_lower: Tensor, right: Tensor) -> Tensor:
    """(I + strictly_lower)⁻¹ right, by forward substitution."""
    solved: Tensor = torch.linalg.solve_triangular(
        strictly_lower, right, upper=False, unitriangular=True
    )
    return solved


def choose(tokens: Tokens) -> Structure:
    """The structure for the fields that the tokens have."""
    if tokens.strength is not None:
        return Delta()
    if tokens.write is not None:
        return RankOne()
    return Decay()
