"""Truncated back-propagation: segments, carried states, detached graphs, new documents."""

from __future__ import annotations

import pytest
import torch

import threefold
from tests.tolerances import assert_close
from threefold.training import carry_state, cut_segments, truncated_bptt


def streams(rows: int = 2, length: int = 10) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(rows, length, 16), torch.arange(rows * length).view(rows, length)


def test_segments_end_where_any_row_starts_a_document() -> None:
    inputs, targets = streams()
    starts = torch.zeros(2, 10, dtype=torch.bool)
    starts[:, 0] = starts[0, 6] = True
    segments = list(cut_segments(inputs, targets, 4, starts))
    assert [segment.inputs.shape[1] for segment in segments] == [4, 2, 4]
    assert [segment.starts.tolist() for segment in segments] == [
        [True, True],
        [False, False],
        [True, False],
    ]
    assert torch.equal(torch.cat([segment.inputs for segment in segments], 1), inputs)
    assert torch.equal(torch.cat([segment.targets for segment in segments], 1), targets)
    assert [p.inputs.shape[1] for p in cut_segments(inputs, targets, 4)] == [4, 4, 2]


@pytest.mark.parametrize("name", ["lstm", "gru", "gla"])
def test_outputs_are_those_of_each_document_alone(name: str) -> None:
    mixer = threefold.mixer(name, width=16)
    inputs, targets = streams()
    starts = torch.zeros(2, 10, dtype=torch.bool)
    starts[:, 0] = starts[0, 6] = True
    segments = list(truncated_bptt(mixer, cut_segments(inputs, targets, 4, starts)))
    outputs = torch.cat([segment.outputs for segment in segments], 1)
    assert_close(outputs[1:], mixer(inputs[1:])[0])
    assert_close(outputs[:1, :6], mixer(inputs[:1, :6])[0])
    assert_close(outputs[:1, 6:], mixer(inputs[:1, 6:])[0])


def test_a_stream_continues_from_a_given_state() -> None:
    mixer = threefold.mixer("gru", width=16)
    inputs, targets = streams()
    uncut, _ = mixer(inputs)
    _, state = mixer(inputs[:, :3])
    rest = truncated_bptt(mixer, cut_segments(inputs[:, 3:], targets[:, 3:], 4), state)
    assert_close(torch.cat([segment.outputs for segment in rest], 1), uncut[:, 3:])


def test_gradients_end_at_the_border_of_a_segment() -> None:
    mixer = threefold.mixer("lstm", width=16)
    inputs, targets = streams()
    inputs.requires_grad_()
    last = list(truncated_bptt(mixer, cut_segments(inputs, targets, 4)))[-1]
    (gradient,) = torch.autograd.grad(last.outputs.sum(), inputs)
    assert (gradient[:, :8] == 0).all() and (gradient[:, 8:] != 0).any()


def test_carried_states_are_detached_and_reset() -> None:
    mixer = threefold.mixer("lstm", width=16)
    _, state = mixer(streams()[0])
    after = carry_state(state, torch.tensor([True, False]))["memory"]["cell"]
    assert not after.requires_grad
    assert (after[0] == 0).all() and torch.equal(after[1], state["memory"]["cell"][1])


def test_wrong_shapes_are_refused() -> None:
    inputs, targets = streams()
    for wrong in (
        lambda: cut_segments(inputs, targets[:, 1:], 4),
        lambda: cut_segments(inputs, targets, 0),
        lambda: cut_segments(inputs, targets, 4, torch.zeros(2, 9, dtype=torch.bool)),
        lambda: cut_segments(inputs, targets, 4, torch.zeros(2, 10)),
    ):
        with pytest.raises(threefold.ThreefoldError, match=r"cut_segments: .*expected"):
            list(wrong())
