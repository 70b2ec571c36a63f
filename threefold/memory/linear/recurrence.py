"""S_t = A_t ⋄ S_{t−1} + k_t⊗v_t,  o_t = S_tᵀ q_t: the linear memory as one public function.

Which arguments are given decides the structure of A; every form gives the same answer.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from threefold.errors import ThreefoldError
from threefold.kernels import ops
from threefold.kernels.autocast import full_precision
from threefold.memory.forms import FORMS, plan_chunk, plan_form
from threefold.memory.linear.engine import run
from threefold.memory.linear.structures import Tokens
from threefold.memory.state import memory_dtype

NAME = "linear_recurrence"  # in error messages


def linear_recurrence(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    log_decay: Tensor | None = None,
    log_decay_value: Tensor | None = None,
    strength: Tensor | None = None,
    rank_one: tuple[Tensor, Tensor] | None = None,
    bonus: Tensor | None = None,
    state: Tensor | None = None,
    form: str = "auto",
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Run a linear memory over a sequence; returns (out [B, L, H, V], state [B, H, K, V]).

    query, key [B, L, H, K] (or G heads, G dividing H), value [B, L, H, V]; nothing is scaled.
    log_decay ≤ 0: [H] constant, [B, L, H] a scalar per step, [B, L, H, K] per key.
    log_decay_value ≤ 0, [B, L, H, V]: decay on the value side too.
    strength [B, L, H]: the delta rule after the decay, S = (I − β k kᵀ) Diag(α) S₋ + β k⊗v.
    rank_one (a, b), each [B, L, H, K]: S = (Diag(α) + a bᵀ) S₋ + k⊗v.
    bonus [H, K]: RWKV-6's read-out (S₋ + (bonus⊙k)⊗v)ᵀ q.
    state [B, H, K, V] float32 (float64 for float64 inputs); None means zeros.
    form: auto, step, chunk or parallel.  chunk: elements per chunk.
    """
    check(query, key, value, log_decay, log_decay_value, strength, rank_one, bonus)

    def check_values() -> None:
        check_decay("log_decay", log_decay)
        check_decay("log_decay_value", log_decay_value)

    return recur(
        query,
        key,
        value,
        log_decay=log_decay,
        log_decay_value=log_decay_value,
        strength=strength,
        rank_one=rank_one,
        bonus=bonus,
        state=state,
        form=form,
        chunk=chunk,
        check_values=check_values,
    )


@full_precision
def recur(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    log_decay: Tensor | None = None,
    log_decay_value: Tensor | None = None,
    strength: Tensor | None = None,
    rank_one: tuple[Tensor, Tensor] | None = None,
    bonus: Tensor | None = None,
    state: Tensor | None = None,
    form: str = "auto",
    chunk: int | None = None,
    lengths: Tensor | None = None,
    check_values: Callable[[], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """`linear_recurrence` for mixers: values are not checked, rows end after `lengths` elements."""
    length = value.shape[1]
    form = plan_form(form, length, FORMS, NAME)
    size = plan_chunk(chunk, length, form)
    dtype = memory_dtype(value.dtype)
    write, read = rank_one if rank_one is not None else (None, None)
    given = Tokens(query, key, value, log_decay, log_decay_value, strength, write, read, bonus)
    if not all(field is None or field.dtype == dtype for field in given):
        given = given.each(lambda field: field.to(dtype))
    shape = (value.shape[0], value.shape[2], key.shape[-1], value.shape[-1])
    before = checked_state(state, shape, dtype, value.device)

    by_kernel = ops.linear_recurrence(
        **given._asdict(),
        state=before,
        lengths=lengths,
        check=check_values,
        form=form,
        chunk=chunk,
    )
    if by_kernel is not None:
        out, after = by_kernel
        return out.to(value.dtype), after
    if check_values is not None:
        check_values()
    out, after = run(heads_first(given, lengths), before, form, size)
    return out.transpose(1, 2).to(value.dtype), after


def heads_first(given: Tokens, lengths: Tensor | None) -> Tokens:
    """Fields [B, L, h, size] as tokens [B, H, L, size], rows ending after `lengths` elements."""
    batch, length, heads = given.value.shape[:3]
    log_decay, strength, bonus = given.log_decay, given.strength, given.bonus
    if log_decay is not None and log_decay.dim() == 1:
        log_decay = log_decay.expand(batch, length, heads)
    if log_decay is not None and log_decay.dim() == 3:
        log_decay = log_decay.unsqueeze(-1)
    if strength is not None:
        strength = strength.unsqueeze(-1)
    if bonus is not None:
        bonus = bonus.expand(batch, length, *bonus.shape)

    def turn(field: Tensor) -> Tensor:
        field = field.transpose(1, 2)
        groups = field.shape[1]
        return field if groups == heads else field.repeat_interleave(heads // groups, 1)

    tokens = given._replace(log_decay=log_decay, strength=strength, bonus=bonus).each(turn)
    return tokens if lengths is None else stop_at(tokens, lengths)


def stop_at(tokens: Tokens, lengths: Tensor) -> Tokens:
    """Tokens whose elements from `lengths` on neither write nor decay."""
    length = tokens.query.shape[-2]
    past_end = torch.arange(length, device=lengths.device) >= lengths[:, None]
    past_end = past_end[:, None, :, None]

    idle = tokens.each(lambda field: field.masked_fill(past_end, 0))
    return idle._replace(query=tokens.query, value=tokens.value, bonus=tokens.bonus)


def checked_state(
    state: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """The given state, checked, or zeros."""
    if state is None:
        return torch.zeros(shape, dtype=dtype, device=device)
    if tuple(state.shape) != shape or state.dtype != dtype:
        raise ThreefoldError(
            f"{NAME}: state is {tuple(state.shape)} {state.dtype}, expected {shape} {dtype} "
            "(batch, heads, key size, value size)"
        )
    return state


def check_decay(name: str, decay: Tensor | None) -> None:
    """Raise if a log-decay is above 0: the memory would grow without bound."""
    if decay is None or torch.compiler.is_compiling():
        return
    largest = decay.detach().max()
    if bool(largest > 0):
        raise ThreefoldError(
            f"{NAME}: {name} must be ≤ 0 (a decay, not a growth); its largest value is "
            f"{largest.item():.6g}"
        )


def check_main(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Raise if query, key and value do not fit together."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() != 4:
            raise ThreefoldError(
                f"{NAME}: {name} is {tuple(tensor.shape)}, expected 4 axes "
                "[batch, length, heads, size]"
            )
    length, heads, groups = value.shape[1], value.shape[2], query.shape[2]
    if length == 0:
        raise ThreefoldError(f"{NAME}: the sequence is empty; give at least one element")
    if heads % max(groups, 1) or groups == 0:
        raise ThreefoldError(
            f"{NAME}: query has {groups} heads, value {heads}; the first must divide the second"
        )
    if not (query.dtype == key.dtype == value.dtype) or not value.dtype.is_floating_point:
        raise ThreefoldError(
            f"{NAME}: query, key and value are {query.dtype}, {key.dtype}, {value.dtype}; "
            "expected one floating-point dtype for all three"
        )


def check(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor | None,
    log_decay_value: Tensor | None,
    strength: Tensor | None,
    rank_one: tuple[Tensor, Tensor] | None,
    bonus: Tensor | None,
) -> None:
    """Raise if shapes, dtypes or the combination of arguments do not fit."""
    check_main(query, key, value)
    batch, length, heads, _ = value.shape
    groups, size = query.shape[2:]
    sized = (batch, length, heads, size)
    if log_decay is not None and log_decay.dim() not in (1, 3, 4):
        raise ThreefoldError(
            f"{NAME}: log_decay is {tuple(log_decay.shape)}, expected [heads], "
            f"[batch, length, heads] or [batch, length, heads, key size], here ({heads},), "
            f"{sized[:3]} or {sized}"
        )
    decay_shape = (heads,) if log_decay is not None and log_decay.dim() == 1 else sized
    a, b = rank_one if rank_one is not None else (None, None)
    for name, field, shape in (
        ("query", query, (batch, length, groups, size)),
        ("key", key, (batch, length, groups, size)),
        ("log_decay", log_decay, decay_shape[: log_decay.dim()] if log_decay is not None else ()),
        ("log_decay_value", log_decay_value, tuple(value.shape)),
        ("strength", strength, sized[:3]),
        ("rank_one[0]", a, sized),
        ("rank_one[1]", b, sized),
        ("bonus", bonus, (heads, size)),
    ):
        if field is not None and tuple(field.shape) != shape:
            raise ThreefoldError(
                f"{NAME}: {name} is {tuple(field.shape)}, expected {shape} to go with query "
                f"{tuple(query.shape)} and value {tuple(value.shape)}"
            )
    check_combination(strength, rank_one, bonus, log_decay_value)


def check_combination(
    strength: object | None, rank_one: object | None, bonus: object | None, on_value: object | None
) -> None:
    """strength and rank_one exclude each other; bonus and value-side decay go with decay only."""
    given = {
        "strength": strength,
        "rank_one": rank_one,
        "bonus": bonus,
        "log_decay_value": on_value,
    }
    names = [name for name, field in given.items() if field is not None]
    if len(names) > 1:
        raise ThreefoldError(
            f"{NAME}: {' and '.join(names)} cannot be combined; each goes with query, key, value "
            "and log_decay alone"
        )
