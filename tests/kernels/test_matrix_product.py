"""Large products of float32 by oneDNN: the values and derivatives of F.linear, and when."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.tolerances import assert_close
from threefold.kernels import library, matrix_product, ops
from threefold.kernels.registration import Operation

# As many rows as make such a product worth it.
ROWS, INPUTS, OUTPUTS = 300, 192, 160


@pytest.fixture(autouse=True)
def preferred(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Whatever the processor is; the shapes of what was computed this way."""
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("torch was built without oneDNN")
    seen: list[tuple[int, ...]] = []

    def watched(call: Operation) -> Operation:
        def run(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            seen.append((*x.shape, weight.shape[0]))
            y: Tensor = call(x, weight, bias)
            return y

        return run

    monkeypatch.setattr(matrix_product, "preferred", lambda: True)
    for name in ("forward", "operation"):
        monkeypatch.setattr(matrix_product, name, watched(getattr(matrix_product, name)))
    return seen


def inputs(bias: bool = True, outputs: int = OUTPUTS) -> list[Tensor]:
    shapes = [(3, ROWS, INPUTS), (outputs, INPUTS), (outputs,)][: 3 if bias else 2]
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def derivatives(function: Operation, given: list[Tensor]) -> list[Tensor]:
    """The result, its gradients for one fixed gradient, and gradients of those gradients."""
    y: Tensor = function(*given)
    grad = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    first = torch.autograd.grad((y * y * grad).sum(), given, create_graph=True)
    second = torch.autograd.grad(first[0].square().sum(), given[:2])
    return [y, *first, *second]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("outputs", [OUTPUTS, 600, 5000])
def test_values_and_derivatives_are_those_of_torch(bias: bool, outputs: int) -> None:
    given = inputs(bias, outputs)
    y = ops.linear(*given)
    assert "matrix_product" in type(y.grad_fn).__name__
    for actual, expected in zip(
        derivatives(ops.linear, given), derivatives(F.linear, given), strict=True
    ):
        assert_close(actual, expected, "gradient")
    with torch.no_grad():
        assert torch.equal(ops.linear(*given), y)


def test_strides_do_not_matter(preferred: list[tuple[int, ...]]) -> None:
    whole = torch.randn(3, 2 * INPUTS, ROWS)
    weight = torch.randn(INPUTS, OUTPUTS)
    with torch.no_grad():
        for x in (whole.mT[..., :INPUTS], whole.mT[..., ::2], whole[:1, ::2].mT.expand(3, -1, -1)):
            assert_close(ops.linear(x, weight.T), F.linear(x.contiguous(), weight.T.contiguous()))
    assert len(preferred) == 3
    x, weight, _ = inputs()
    y = ops.linear(x, weight)
    # The gradient of a sum has the stride 0 everywhere.
    for actual, expected in zip(
        torch.autograd.grad(y.sum(), (x, weight)),
        torch.autograd.grad(F.linear(x, weight).sum(), (x, weight)),
        strict=True,
    ):
        assert_close(actual, expected, "gradient")


def test_the_same_bits_every_time() -> None:
    given = inputs()
    first = derivatives(ops.linear, given)
    for _ in range(3):
        assert all(map(torch.equal, first, derivatives(ops.linear, given)))


def test_infinities_and_nan_stay_in_their_rows() -> None:
    x, weight, bias = inputs()
    with torch.no_grad():
        x[0, 7, 3], x[1, 9, 5], weight[4, 2] = torch.inf, torch.nan, torch.inf
        y, expected = ops.linear(x, weight, bias), F.linear(x, weight, bias)
    assert torch.equal(y.isnan(), expected.isnan())
    assert torch.equal(y.isinf(), expected.isinf())


def test_what_it_is_not_for(
    preferred: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small products, other dtypes, autocast, subclasses, transforms, plain torch on request."""

    class Own(nn.Parameter):
        pass

    x, weight, bias = (tensor.detach() for tensor in inputs())
    with library.using("reference"):
        ops.linear(x, weight, bias)
    with torch.autocast("cpu"):
        ops.linear(x, weight, bias)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    ops.linear(x, weight, bias)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", True)
    ops.linear(x[:, :20], weight, bias)
    ops.linear(x.double(), weight.double(), bias.double())
    ops.linear(x, Own(weight), bias)
    torch.func.grad(lambda x: ops.linear(x, weight).sum())(x)
    torch.func.jvp(lambda x: ops.linear(x, weight), (x,), (x,))
    torch.vmap(lambda x: ops.linear(x, weight))(x)
    assert not preferred
    ops.linear(x, weight, bias)
    with torch.no_grad():
        ops.linear(x, weight, bias)
    assert preferred == 2 * [(3, ROWS, INPUTS, OUTPUTS)]


def test_wrong_shapes_are_refused_as_everywhere() -> None:
    x, weight, bias = inputs()
    with pytest.raises(Exception, match=r"linear: .*expected"):
        ops.linear(x, weight[:, 1:], bias)


def test_products_with_a_matrix_as_it_is(preferred: list[tuple[int, ...]]) -> None:
    x, weight = inputs(bias=False)
    matrix = weight.detach().T.contiguous().requires_grad_()
    for actual, expected in zip(
        derivatives(ops.product, [x, matrix]), derivatives(torch.matmul, [x, matrix]), strict=True
    ):
        assert_close(actual, expected, "gradient")
    assert preferred[0] == (3, ROWS, INPUTS, OUTPUTS)
    assert torch.equal(ops.product(x[:, :3], matrix), x[:, :3] @ matrix)


@pytest.mark.parametrize(
    ("maker", "capability", "expected"),
    [
        ("GenuineIntel", "AVX512", False),
        ("AuthenticAMD", "AVX512", True),
        ("AuthenticAMD", "AVX2", False),
        ("", "AVX512", False),
    ],
)
def test_chosen_by_the_processor(
    maker: str, capability: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(matrix_product, "maker", lambda: maker)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    matrix_product.preferred.cache_clear()
    assert matrix_product.preferred() == expected
    matrix_product.preferred.cache_clear()
