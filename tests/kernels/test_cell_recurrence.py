"""The loop of every nonlinear cell: native = the step in a loop, forward and backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.kernels.recurrences import by_kernel
from tests.tolerances import assert_close
from threefold.errors import ThreefoldError
from threefold.kernels import cell_recurrence as native
from threefold.kernels import library, ops
from threefold.memory import cell as cells
from threefold.memory.cell import Cell, CellWeights, loop
from threefold.memory.coupled import CoupledCell

DTYPES = [torch.float32, torch.float64]
CELLS: dict[str, Cell] = {
    made.kind: made
    for made in (
        *(cells.RNNCell(activation) for activation in cells.ACTIVATIONS),
        cells.LSTMCell(),
        cells.PeepholeLSTMCell(),
        cells.CoupledLSTMCell(),
        *(cells.GRUCell(after, writes) for after in (False, True) for writes in (False, True)),
        cells.SLSTMCell(),
        CoupledCell(gated=False),
        CoupledCell(gated=True),
        cells.URLSTMCell(),
        cells.URGRUCell(),
        cells.EulerCell(),
        cells.ModReLUCell(),
    )
}
every_cell = pytest.mark.parametrize("kind", CELLS)


def make(
    kind: str,
    size: tuple[int, int, int],
    dtype: torch.dtype = torch.float64,
    *,
    blocks: int = 1,
    mask: bool = False,
    lengths: bool = False,
) -> dict[str, Any]:
    """Random inputs for (B, L, H); lengths include 0, 1 and L."""
    batch, length, hidden = size
    gates, parts, _, extras = native.CELL_KINDS[kind]
    each = hidden // blocks
    return {
        "inputs": torch.randn(batch, length, gates, hidden, dtype=dtype),
        "recurrent": torch.randn(blocks, gates * each, each, dtype=dtype) * each**-0.5,
        "extra": torch.randn(extras, hidden, dtype=dtype) if extras else None,
        "mask": torch.randint(0, 2, (batch, hidden)).to(dtype) * 2 if mask else None,
        "parts": tuple(torch.randn(parts, batch, hidden, dtype=dtype) * 0.5),
        "lengths": torch.tensor([0, length, 1, length // 2, length])[:batch] if lengths else None,
    }


def plain(kind: str, **given: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
    weights = CellWeights(given["recurrent"], given["extra"], given["mask"])
    return loop(CELLS[kind], given["inputs"], given["parts"], weights, given["lengths"])


def fast(kind: str, **given: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
    return by_kernel(ops.cell_recurrence(kind, **given))


def results(function: Any, kind: str, given: dict[str, Any]) -> dict[str, Tensor]:
    """Outputs, parts, and gradients of everything for fixed random gradients of both."""
    leaves = {
        key: given[key].detach().requires_grad_()
        for key in ("inputs", "recurrent", "extra")
        # The mask of linear units has no gradient.
        if given[key] is not None and not (key == "extra" and kind.endswith("memory"))
    }
    parts = tuple(part.detach().requires_grad_() for part in given["parts"])
    out, after = function(kind, **{**given, **leaves, "parts": parts})
    generator = torch.Generator().manual_seed(1)
    # The rounding error of the logarithm (sLSTM's last part) has no gradient.
    outputs = [out, *(a for a in after[: 3 if kind == "slstm" else None])]
    grads = [torch.randn(o.shape, dtype=o.dtype, generator=generator) for o in outputs]
    wanted = leaves | {
        f"part {i}": p for i, p in enumerate(parts) if not (kind == "slstm" and i == 3)
    }
    found = torch.autograd.grad(outputs, list(wanted.values()), grads)
    made = {"out": out, **{f"state {i}": a for i, a in enumerate(outputs[1:])}}
    return made | {f"gradient of {k}": g for k, g in zip(wanted, found, strict=True)}


def assert_same(kind: str, given: dict[str, Any]) -> None:
    expected = results(plain, kind, given)
    for name, tensor in results(fast, kind, given).items():
        quantity = name.split()[0].replace("out", "output")
        assert_close(tensor, expected[name], quantity, f"{kind}: {name}")


@pytest.mark.parametrize("dtype", DTYPES)
@every_cell
def test_native_is_the_loop(variant: str, kind: str, dtype: torch.dtype) -> None:
    for size in ((1, 2, 1), (2, 5, 3), (5, 7, 17), (3, 4, 40), (9, 3, 8)):
        assert_same(kind, make(kind, size, dtype))
    assert_same(kind, make(kind, (5, 6, 18), dtype, lengths=True))
    assert_same(kind, make(kind, (5, 6, 12), dtype, blocks=3, mask=True, lengths=True))


@every_cell
def test_threads_and_other_rows_change_no_bit(variant: str, kind: str) -> None:
    given = make(kind, (7, 40, 70), torch.float32, lengths=False)
    runs = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        runs.append(fast(kind, **given))
    for out, after in runs[1:]:
        assert torch.equal(out, runs[0][0])
        assert all(torch.equal(a, b) for a, b in zip(after, runs[0][1], strict=True))
    alone = {
        **given,
        "inputs": given["inputs"][3:4],
        "parts": tuple(part[3:4] for part in given["parts"]),
    }
    assert torch.equal(fast(kind, **alone)[0], runs[0][0][3:4])


@every_cell
def test_padding_is_never_read_and_nan_stays(variant: str, kind: str) -> None:
    given = make(kind, (4, 6, 9), torch.float32, lengths=True)
    padding = (torch.arange(6) >= given["lengths"][:, None])[:, :, None, None]
    poisoned = {**given, "inputs": given["inputs"].masked_fill(padding, torch.nan)}
    clean = {**given, "inputs": given["inputs"].masked_fill(padding, 0)}
    for (name, a), b in zip(
        results(fast, kind, poisoned).items(), results(fast, kind, clean).values(), strict=True
    ):
        assert torch.equal(a, b), name
    given = make(kind, (2, 6, 9), torch.float32)
    given["inputs"][1, 3, 0, 8] = torch.nan
    out, _ = fast(kind, **given)
    assert not out[0].isnan().any() and not out[1, :3].isnan().any()
    assert out[1, 3, 8].isnan() and out[1, 4:].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
@every_cell
def test_every_output_is_written_and_nothing_else(
    variant: str, kind: str, dtype: torch.dtype
) -> None:
    size, guard = (3, 5, 11), 64
    given = make(kind, size, dtype, lengths=True)
    gates, parts, kept, _ = native.CELL_KINDS[kind]
    state = torch.stack(given["parts"], 1)
    batch, length, hidden = size
    sizes = [*size, 1, list(native.CELL_KINDS).index(kind)]

    def guarded(*shape: int) -> Tensor:
        whole = torch.full((torch.Size(shape).numel() + 2 * guard,), 7.0, dtype=dtype)
        whole[guard:-guard] = torch.nan
        wholes.append(whole)
        return whole[guard:-guard]

    wholes: list[Tensor] = []
    out, new_state = guarded(*size), guarded(batch, parts, hidden)
    keep = guarded(batch, length, kept, hidden)
    space = library.workspace("cell_recurrence_workspace", state, [*sizes, False])
    rest = [given["extra"], given["mask"], given["lengths"]]
    library.call(
        "cell_recurrence_forward",
        [out, new_state, keep, guarded(len(space))],
        [given["inputs"], given["recurrent"], state, *rest],
        sizes,
    )
    space = library.workspace("cell_recurrence_workspace", state, [*sizes, True])
    library.call(
        "cell_recurrence_backward",
        [guarded(*size, gates), guarded(batch, parts, hidden), guarded(len(space))],
        [torch.randn(size, dtype=dtype), None, out, keep, given["recurrent"], state, *rest],
        sizes,
    )
    for index, whole in enumerate(wholes):
        assert (whole[:guard] == 7).all() and (whole[-guard:] == 7).all(), index
        if index not in (3, 6):  # a workspace may have room that a cell leaves
            assert not whole.isnan().any(), index


@every_cell
def test_opcheck(kind: str) -> None:
    given = make(kind, (3, 4, 5), lengths=True)
    tensors = [given["inputs"], given["recurrent"], torch.stack(given["parts"], 1), given["extra"]]
    leaves = [None if t is None else t.requires_grad_() for t in tensors]
    for keep in (True, False):
        torch.library.opcheck(
            native.operation, (*leaves, given["mask"], given["lengths"], kind, keep)
        )


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_compiles_whole(kind: str) -> None:
    given = make(kind, (3, 4, 5))
    compiled = torch.compile(lambda: fast(kind, **given), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled()[0], fast(kind, **given)[0])


@every_cell
def test_cut_anywhere_and_resume(variant: str, kind: str) -> None:
    given = make(kind, (2, 11, 19), torch.float32)
    whole, last = fast(kind, **given)
    parts, outputs = given["parts"], []
    for piece in given["inputs"].split([2, 4, 2, 3], dim=1):
        out, parts = fast(kind, **{**given, "inputs": piece, "parts": parts})
        outputs.append(out)
    assert torch.equal(torch.cat(outputs, 1), whole)
    assert all(torch.equal(a, b) for a, b in zip(parts, last, strict=True))


WRONG = {
    "gates": ({"inputs": torch.zeros(2, 5, 3, 6)}, r"inputs \[B, L, 4, H\].*\[2, 5, 3, 6\]"),
    "recurrent": ({"recurrent": torch.zeros(1, 20, 6)}, r"recurrent \[N, 4·S, S\].*\[1, 20, 6\]"),
    "mask": ({"mask": torch.zeros(3, 6)}, r"mask \[2, 6\].*\[3, 6\]"),
    "dtype": (
        {"recurrent": torch.zeros(1, 24, 6).double()},
        "all tensors to be torch.float32.*float64",
    ),
    "lengths": ({"lengths": torch.tensor([0, 6])}, "length is outside 0 … L"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_refused(case: str) -> None:
    change, message = WRONG[case]
    with pytest.raises(ThreefoldError, match=message):
        fast("lstm", **{**make("lstm", (2, 5, 6), torch.float32), **change})
