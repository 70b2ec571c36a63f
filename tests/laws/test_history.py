"""Histories: no needless copies, forks stay correct, rows join and leave."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import threefold
from tests.tolerances import assert_close
from threefold import ThreefoldError
from threefold.layers.attention_parts.cross_attention import CrossAttention
from threefold.layers.mixer import Mixer
from threefold.memory import state as states
from threefold.memory.state import State

WIDTH = 32
KINDS: dict[str, dict[str, Any]] = {
    "everything": {"heads": 4, "groups": 2},
    "window": {"heads": 4, "groups": 2, "window": 6},
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def make(kind: str, dtype: torch.dtype = torch.float32) -> Mixer:
    torch.manual_seed(0)
    return threefold.mixer("attention", width=WIDTH, **KINDS[kind]).to(dtype).eval()


def some(rows: int, length: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, length, WIDTH, generator=generator, dtype=torch.float64).to(dtype)


def pointers(state: State) -> set[int]:
    return {
        leaf.untyped_storage().data_ptr()
        for name, leaf in states.leaves(state)
        if name.rpartition(".")[2] in ("keys", "values")
    }


@every_kind
def test_steps_without_gradients_do_not_copy_the_past(kind: str) -> None:
    mixer, x = make(kind), some(2, 300)
    buffers, state = [], None
    with torch.no_grad():
        for t in range(300):
            _, state = mixer.step(x[:, t], state)
            buffers.append(frozenset(pointers(state)))
    moves = sum(a != b for a, b in itertools.pairwise(buffers))
    assert moves <= (5 if kind == "everything" else 6)


@every_kind
def test_pieces_without_gradients_equal_the_whole(kind: str) -> None:
    mixer, x = make(kind, torch.float64), some(2, 90, dtype=torch.float64)
    whole, _ = mixer(x)
    with torch.no_grad():
        state, outputs = None, []
        for piece in x.split([1, 1, 5, 1, 3, 30, 2, 1, 40, 6], 1):
            y, state = mixer(piece, state)
            outputs.append(y)
    assert_close(torch.cat(outputs, 1), whole)


@every_kind
def test_forks_are_right_and_copy_once(kind: str) -> None:
    mixer, x = make(kind, torch.float64), some(2, 40, dtype=torch.float64)
    with torch.no_grad():
        _, state = mixer(x[:, :10])
        _, state = mixer.step(x[:, 10], state)
        frozen = states.clone(state)
        first, main = mixer.step(x[:, 11], state)
        other, fork = mixer.step(x[:, 20], state)  # writes where `main` has written already
        assert pointers(main) == pointers(state)
        assert pointers(fork).isdisjoint(pointers(state))
        again, _ = mixer.step(x[:, 11], state)
        assert torch.equal(first, again)
        for _ in range(3):
            after_main, main = mixer.step(x[:, 12], main)
            after_fork, fork = mixer.step(x[:, 21], fork)
    for (name, a), (_, b) in zip(states.leaves(state), states.leaves(frozen), strict=True):
        assert torch.equal(a, b), name
    repeat = [x[:, 12]] * 3
    expected, _ = mixer(torch.stack([*x[:, :12].unbind(1), *repeat], 1))
    assert_close(after_main, expected[:, -1])
    repeat = [x[:, 21]] * 3
    expected, _ = mixer(torch.stack([*x[:, :11].unbind(1), x[:, 20], *repeat], 1))
    assert_close(after_fork, expected[:, -1])
    assert not torch.equal(first, other)


def test_a_state_taken_back_is_a_fork() -> None:
    mixer, x = make("everything", torch.float64), some(1, 12, dtype=torch.float64)
    with torch.no_grad():
        _, state = mixer(x[:, :8])
        _, state = mixer.step(x[:, 8], state)
        back = {**state, "position": state["position"] - 2}
        y, _ = mixer.step(x[:, 11], back)
        kept, _ = mixer.step(x[:, 9], state)
    expected, _ = mixer(torch.cat([x[:, :7], x[:, 11:]], 1))
    assert_close(y, expected[:, -1])
    assert_close(kept, mixer(x[:, :10])[0][:, -1])


@every_kind
def test_rows_of_different_ages(kind: str) -> None:
    """Rows join, leave, are emptied, and take different numbers of elements."""
    mixer = make(kind, torch.float64)
    x = some(3, 40, dtype=torch.float64)
    at = [3, 11, 0]
    with torch.no_grad():
        parts = [
            mixer(x[r : r + 1, :n])[1] if n else mixer.empty_state(1) for r, n in enumerate(at)
        ]
        state = states.join(parts)
        for counts in ([1, 1, 1], [4, 0, 9], [0, 1, 1], [1, 1, 1], [2, 5, 1]):
            width = max(counts)
            piece = torch.full((3, width, WIDTH), float("nan"), dtype=torch.float64)
            mask = torch.zeros(3, width, dtype=torch.bool)
            for row, n in enumerate(counts):
                mask[row, width - n :] = True
                piece[row, width - n :] = x[row, at[row] : at[row] + n]
            y, state = mixer(piece, state, mask=mask)
            for row, n in enumerate(counts):
                at[row] += n
                expected, _ = mixer(x[row : row + 1, : at[row]])
                assert_close(
                    y[row, width - n :], expected[0, at[row] - n :], what=f"{counts} {row}"
                )
        one = states.select(state, [2])
        if kind == "everything":
            assert one["keys"].shape[1] == at[2]
        expected, _ = mixer(x[2:, : at[2] + 1])
        assert_close(mixer.step(x[2:, at[2]], one)[0], expected[:, -1])
        emptied = states.reset(state, [1])
        y, emptied = mixer.step(x[:, 0], emptied)
        assert_close(y[1:2], mixer(x[1:2, :1])[0][:, 0])
    assert emptied["position"].tolist() == [at[0] + 1, 1, at[2] + 1]


@every_kind
def test_inference_mode_and_copies(kind: str) -> None:
    mixer, x = make(kind, torch.float64), some(2, 6, dtype=torch.float64)
    expected, _ = mixer(x)
    with torch.inference_mode():
        _, state = mixer(x[:, :3])
        _, state = mixer.step(x[:, 3], state)
    with torch.no_grad():
        for start in (state, copy.deepcopy(state)):
            y, _ = mixer(x[:, 4:], start)
            assert_close(y, expected[:, 4:])
            assert_close(mixer.step(x[:, 4], start)[0], expected[:, 4])


def test_gradients_meet_a_cache_made_without_them() -> None:
    mixer, x = make("everything", torch.float64), some(2, 9, dtype=torch.float64)
    with torch.no_grad():
        _, state = mixer(x[:, :4])
        _, state = mixer.step(x[:, 4], state)
    y, after = mixer(x[:, 5:7], state)
    with torch.no_grad():
        mixer.step(x[:, 5], state)  # writes behind `state`, not into the graph
    y.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in mixer.parameters())
    assert after["keys"].requires_grad


class TestCrossAttention:
    @pytest.fixture
    def cross(self) -> CrossAttention:
        torch.manual_seed(0)
        return CrossAttention(WIDTH, source_width=24, heads=4, groups=2).double().eval()

    def test_equals_attention_written_out(self, cross: CrossAttention) -> None:
        x, source = some(2, 5, dtype=torch.float64), some(2, 7, 3, torch.float64)[..., :24]
        y, state = cross(x, source)
        q, k, v = (
            f(s).unflatten(-1, (-1, 8)).transpose(1, 2)
            for f, s in (
                (cross.heads.query, x),
                (cross.heads.key, source),
                (cross.heads.value, source),
            )
        )
        k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        out = (q @ k.mT / 8**0.5).softmax(-1) @ v
        assert_close(y, cross.heads.out(out.transpose(1, 2).flatten(2)))
        step, _ = cross(x[:, 2:3], None, state)
        assert_close(step, y[:, 2:3])

    def test_padding_of_the_source(self, cross: CrossAttention) -> None:
        x, source = some(3, 4, dtype=torch.float64), some(3, 7, 3, torch.float64)[..., :24]
        mask = torch.zeros(3, 7, dtype=torch.bool)
        mask[0, 2:] = mask[1, :3] = True
        y, state = cross(x, source.masked_fill(~mask.unsqueeze(-1), float("nan")), source_mask=mask)
        assert state["keys"].shape[1] == 5 and (y[2] == 0).all()
        assert_close(y[0:1], cross(x[0:1], source[0:1, 2:])[0])
        assert_close(y[1:2], cross(x[1:2], source[1:2, :3])[0])
        one = states.select(state, [1])
        assert one["keys"].shape[1] == 3
        assert_close(cross(x[1:2], None, one)[0], y[1:2])
        both = states.join([one, states.select(state, [0])])
        assert_close(cross(x[[1, 0]], None, both)[0], y[[1, 0]])

    def test_bad_input(self, cross: CrossAttention) -> None:
        x = some(2, 4, dtype=torch.float64)
        with pytest.raises(ThreefoldError, match="neither a source nor a state"):
            cross(x, None)
        with pytest.raises(
            ThreefoldError, match=r"source is \(2, 4, 32\), expected \[2, length, 24"
        ):
            cross(x, x)
        with pytest.raises(ThreefoldError, match="another batch size"):
            cross(x, None, cross(x[:1], x[:1, :, :24])[1])
        with pytest.raises(ThreefoldError, match=r"x is \(2, 4, 24\)"):
            cross(x[..., :24], x[..., :24])
