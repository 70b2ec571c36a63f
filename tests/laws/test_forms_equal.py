"""step = scan = chunk(C) = parallel: outputs, final state, and all gradients, the state's too."""

from __future__ import annotations

import pytest
import torch

from tests.laws.cases import STRUCTURES, Inputs, make, run, with_gradients
from tests.tolerances import assert_close

LENGTH = 83
CHUNKS = (1, 2, 7, 16, 64, LENGTH)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_every_form_gives_the_answer_of_the_step(structure: str, dtype: torch.dtype) -> None:
    inputs = make(structure, LENGTH, dtype)
    expected = with_gradients(structure, inputs, "step")
    for form, chunk in [*(("chunk", c) for c in CHUNKS), ("parallel", None), ("auto", None)]:
        what = f"{structure} {form} {chunk}"
        out, state, gradients = with_gradients(structure, inputs, form, chunk)
        assert_close(out, expected[0], "output", what)
        assert_close(state, expected[1], "state", what)
        for name, gradient in gradients.items():
            assert_close(gradient, expected[2][name], "gradient", f"{what}: gradient of {name}")


@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_scan_is_the_step_in_a_loop(structure: str) -> None:
    inputs = make(structure, 5, torch.float64)
    out, state = run(structure, inputs, "step")
    carried = inputs["state"]
    for t in range(5):
        piece = cut(inputs, slice(t, t + 1)) | {"state": carried}
        here, carried = run(structure, piece, "step")
        assert_close(here[:, 0], out[:, t])
    assert_close(carried, state, "state")


@pytest.mark.parametrize("form", ["chunk", "parallel"])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_any_cut_carries_on(structure: str, form: str) -> None:
    inputs = make(structure, 40, torch.float64)
    out, state = run(structure, inputs, "step")
    first, carried = run(structure, cut(inputs, slice(0, 23)), form, 8)
    second, carried = run(structure, cut(inputs, slice(23, 40)) | {"state": carried}, form, 8)
    assert_close(torch.cat([first, second], 1), out)
    assert_close(carried, state, "state")


@pytest.mark.parametrize("structure", STRUCTURES)
def test_gradcheck_from_one_piece_to_the_next(structure: str) -> None:
    inputs = {name: t.requires_grad_() for name, t in make(structure, 4, torch.float64).items()}
    names = list(inputs)

    def two_pieces(*tensors: torch.Tensor) -> torch.Tensor:
        given = dict(zip(names, tensors, strict=True))
        _, carried = run(structure, cut(given, slice(0, 2)), "chunk", 2)
        out, _ = run(structure, cut(given, slice(2, 4)) | {"state": carried}, "chunk", 2)
        return out

    assert torch.autograd.gradcheck(two_pieces, tuple(inputs.values()), fast_mode=True)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_causal_bit_for_bit(structure: str) -> None:
    inputs = make(structure, 40, torch.float32)
    other = make(structure, 40, torch.float32, decay=0.5)
    timed = {name for name in inputs if is_timed(name, inputs)}
    changed = {
        name: torch.cat([t[:, :17], 3 * other[name][:, 17:].flip(1)], 1) if name in timed else t
        for name, t in inputs.items()
    }
    for form, chunk in (("step", None), ("chunk", 16), ("parallel", None)):
        before, after = (run(structure, given, form, chunk)[0] for given in (inputs, changed))
        assert torch.equal(before[:, :17], after[:, :17]), form
        assert not torch.equal(before[:, 17:], after[:, 17:]), form


def is_timed(name: str, inputs: Inputs) -> bool:
    """Whether a field has the time axis."""
    if name in ("state", "A", "D", "delta_bias", "bonus"):
        return False
    return not (name == "log_decay" and inputs[name].dim() == 1)


def cut(inputs: Inputs, piece: slice) -> Inputs:
    """The elements of one piece."""
    return {name: t[:, piece] if is_timed(name, inputs) else t for name, t in inputs.items()}
