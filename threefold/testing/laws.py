"""The laws of the contract, each a function that raises a ContractError with the numbers.

    results        mix returns an output as wide as x, and the state that was declared
    forms          step = chunk = parallel, outputs and states, from any state
    continuation   a sequence cut anywhere, its state carried, equals the uncut one
    causality      no output changes when a later element does
    calls          each linear map is called, so that hooks and replaced maps act
    not finite     NaN in an input is not hidden
    rows           nor when another row does
    padding        masked elements do not exist, whatever they hold
    gradients      equal in all forms, through the carried state; none from padding
    state          empty is zeros; a call changes no older state; state_size is what is held
    weights        a copy with the same weights gives the same answers
    autocast       under bfloat16 the answers resemble those of float32

`tests/contract` runs them for every mixer of the table.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from threefold.errors import ThreefoldError
from threefold.layers.mixer import Mixer
from threefold.memory import state as states
from threefold.memory.state import State
from threefold.testing.closeness import assert_within, require

LENGTH = 40
SPANS = ((0, 24), (5, 24), (0, 9), (7, 8), (3, 3))  # whole, left, right, one element, nothing
CUTS = ((1, 39), (39, 1), (13, 27), (1, 1, 1, 37), (7, 1, 2, 30))
RESEMBLANCE = 0.98  # correlation: bfloat16 keeps 8 bits, and a swapped tensor would not resemble


def sample(mixer: Mixer, rows: int = 3, length: int = LENGTH, seed: int = 1) -> Tensor:
    """Random inputs [rows, length, width], always the same, in the mixer's dtype."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, length, mixer.width, generator=generator, dtype=torch.float64)
    return x.to(mixer.dtype)


def assert_same_future(mixer: Mixer, actual: State, expected: State, what: str) -> None:
    """Equal leaves and next eight outputs (only these where a maximum leaves the scale free)."""
    rows = states.batch_size(expected)
    require(rows is not None, f"{what}: the state is empty, so it carries nothing")
    x = sample(mixer, rows or 1, 8, seed=5)
    following = mixer(x, actual)[0], mixer(x, expected)[0]
    assert_within(*following, "output", f"{what}: next eight outputs")
    if "maximum" in expected:
        return
    for (leaf, a), (_, b) in zip(states.leaves(actual), states.leaves(expected), strict=True):
        if a.dtype.is_floating_point:
            assert_within(a, b, "state", f"{what}: {leaf}")
        else:
            require(torch.equal(a, b), f"{what}: {leaf} differs")


def results(mixer: Mixer) -> None:
    """`mix` returns (y, state): y has the shape of x, and the state is the declared one."""
    x = sample(mixer, rows=2, length=1)
    for form in mixer.forms:
        given = mixer._start_state(2)
        returned: Any = mixer.mix(x, given, form, None)
        require(
            isinstance(returned, tuple) and len(returned) == 2,
            f"{form}: mix returned {_describe(returned)}, expected (y, state)",
        )
        y, after = returned
        require(
            isinstance(y, Tensor) and y.shape == x.shape,
            f"{form}: y is {_describe(y)}, expected {tuple(x.shape)}, the shape of x",
        )
        require(y.dtype == x.dtype, f"{form}: y is {y.dtype}, but x and the mixer are {x.dtype}")
        if mixer.causal:
            mixer.check_state(after, 2)


def forms(mixer: Mixer) -> None:
    """Every form gives the outputs and the state of the step, from a state that is not empty."""
    x = sample(mixer)
    _, before = mixer(sample(mixer, length=5, seed=2), form="step")
    expected, after = mixer(x, before, form="step")
    for form in _other_forms(mixer):
        y, state = mixer(x, before, form=form)
        assert_within(y, expected, "output", f"{form} and step")
        assert_same_future(mixer, state, after, f"{form} and step")


def continuation(mixer: Mixer) -> None:
    """A sequence cut anywhere equals the uncut one."""
    x = sample(mixer, rows=2)
    with torch.no_grad():
        whole, after = mixer(x)
        for pieces in CUTS:
            outputs, state = cut(mixer, x, pieces)
            assert_within(outputs, whole, "output", f"cut into {list(pieces)}")
            assert_same_future(mixer, state, after, f"cut into {list(pieces)}")


def cut(mixer: Mixer, x: Tensor, pieces: tuple[int, ...]) -> tuple[Tensor, State]:
    """Outputs and state of a sequence that is read in pieces."""
    outputs, state, at = [], mixer.empty_state(len(x)), 0
    for length in pieces:
        y, state = mixer(x[:, at : at + length], state)
        outputs.append(y)
        at += length
    return torch.cat(outputs, 1), state


def causality(mixer: Mixer, exact: bool = False) -> None:
    """Outputs before an element do not change with it: bit for bit, or within the limit."""
    x = sample(mixer)
    changed = torch.cat([x[:, :19], 2 * x[:, 19:].flip(1) + 1], 1)
    for form in mixer.forms:
        before, after = mixer(x, form=form)[0], mixer(changed, form=form)[0]
        what = f"{form}: outputs 1 to 19 after elements 20 to {LENGTH} changed"
        if exact:
            require(torch.equal(before[:, :19], after[:, :19]), what)
        else:  # relative to the largest output: a Fourier transform spreads rounding
            joined = torch.cat([before[:, :19], after[:, 19:]], 1)
            assert_within(joined, after, "output", what)
        require(
            not torch.equal(before[:, 19:], after[:, 19:]),
            f"{form}: the outputs do not depend on the inputs",
        )


def rows(mixer: Mixer) -> None:
    """A row does not change with the other rows, bit for bit."""
    x = sample(mixer, rows=4)
    changed = x.clone()
    changed[[0, 1, 3]] = 2 * changed[[0, 1, 3]].flip(1) + 1
    for form in mixer.forms:
        (y, state), (other, other_state) = mixer(x, form=form), mixer(changed, form=form)
        _require_equal(y[2], other[2], f"{form}: a row after the other rows changed")
        require(not torch.equal(y[1], other[1]), f"{form}: the outputs do not depend on the inputs")
        leaves = zip(states.leaves(state or {}), states.leaves(other_state or {}), strict=True)
        for (leaf, a), (_, b) in leaves:
            _require_equal(a[2], b[2], f"{form}: {leaf} of a row after the other rows changed")


def padding(mixer: Mixer) -> None:
    """Rows with NaN at masked elements give what each gives alone, and keep their states."""
    x = sample(mixer, rows=len(SPANS), length=24)
    mask = torch.zeros(len(SPANS), 24, dtype=torch.bool)
    for row, (begin, end) in enumerate(SPANS):
        mask[row, begin:end] = True
    poisoned = x.masked_fill(~mask.unsqueeze(-1), float("nan"))
    before = mixer(sample(mixer, len(SPANS), 6, seed=7))[1] if mixer.causal else None
    for form in mixer.forms:
        y, after = mixer(poisoned, before, form=form, mask=mask)
        require((y[~mask] == 0).all(), f"{form}: outputs at padding are not 0")
        for row, (begin, end) in enumerate(SPANS):
            what = f"{form}, elements {begin} to {end} of 24"
            start = None if before is None else states.select(before, [row])
            own = None if before is None else states.select(after, [row])
            _check_row(mixer, x[row : row + 1, begin:end], y[row : row + 1, begin:end],
                       (start, own), what)  # fmt: skip


def _check_row(
    mixer: Mixer, x: Tensor, y: Tensor, carried: tuple[State | None, State | None], what: str
) -> None:
    """One row of a padded batch, `carried` before and after it, against the row alone."""
    before, after = carried
    if x.shape[1] == 0:
        for (leaf, a), (_, b) in zip(
            states.leaves(after or {}), states.leaves(before or {}), strict=True
        ):
            _require_equal(a, b, f"{what}: {leaf} of a row of padding alone")
        return
    alone, state = mixer(x, before)
    assert_within(y, alone, "output", what)
    if after is not None:
        assert_same_future(mixer, after, state, what)


def gradients(mixer: Mixer) -> None:
    """The gradients of inputs, weights and states are equal in all forms, across two pieces."""
    expected = _gradients(mixer, "step" if "step" in mixer.forms else mixer.forms[0])
    missing = {name for name, _ in mixer.named_parameters()} - expected.keys()
    require(not missing, f"no gradient reaches {sorted(missing)}")
    for name, gradient in expected.items():
        require(gradient.isfinite().all(), f"the gradient of {name} is not finite")
    for form in _other_forms(mixer):
        for name, gradient in _gradients(mixer, form).items():
            assert_within(gradient, expected[name], "gradient", f"{form}: gradient of {name}")


def gradients_of_padding(mixer: Mixer) -> None:
    """Padding has no gradient, and spoils no other."""
    mask = torch.zeros(2, 12, dtype=torch.bool)
    mask[0, 4:] = mask[1, :7] = True
    x = sample(mixer, 2, 12).masked_fill(~mask.unsqueeze(-1), float("nan")).requires_grad_()
    loss = mixer(x, mask=mask)[0].square().sum()
    weights = list(mixer.parameters())
    found, *others = torch.autograd.grad(loss, [x, *weights], allow_unused=True)
    require(
        all(g is not None and g.isfinite().all() for g in (found, *others)),
        "NaN at padding makes a gradient NaN",
    )
    require((found[~mask] == 0).all(), "an element of padding has a gradient")
    require((found[mask] != 0).any(), "no real element has a gradient")


def _gradients(mixer: Mixer, form: str) -> dict[str, Tensor]:
    x = sample(mixer, length=17).requires_grad_()
    weight = sample(mixer, length=17, seed=4)
    wanted = {"x": x, **dict(mixer.named_parameters())}
    start: State | None = None
    if mixer.causal:
        _, before = mixer(sample(mixer, length=5, seed=2), form="step")
        start = states.transform(lambda t: t.detach().clone(), before)
        wanted |= {
            leaf: tensor.requires_grad_()
            for leaf, tensor in states.leaves(start)
            if leaf != "maximum" and tensor.is_floating_point()
        }
    y, after = mixer(x, start, form=form)
    loss = (y * weight).sum()
    if mixer.causal:  # through the carried state as well: the outputs of the next piece count
        loss = loss + (mixer(weight.flip(1), after, form=form)[0] * weight).sum()
    found = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
    return {name: g for name, g in zip(wanted, found, strict=True) if g is not None}


def state(mixer: Mixer) -> None:
    """The state is what it says: zeros when empty, never changed by a later call, of its size."""
    empty = mixer.empty_state(3)
    for leaf, tensor in states.leaves(empty):
        require((tensor == 0).all(), f"{leaf} of the empty state is not zero")
    x = sample(mixer)
    y, after = mixer(x)
    frozen = states.clone(after)
    _require_equal(y, mixer(x, empty)[0], "outputs from None and from the empty state")
    held = sum(leaf[0].numel() * leaf.element_size() for _, leaf in states.leaves(after))
    said = mixer.state_size(LENGTH)
    require(said == held, f"state_size({LENGTH}) is {said:,} bytes, the state holds {held:,}")
    first, second = mixer(x, after)[0], mixer(x, after)[0]
    _require_equal(first, second, "outputs of two calls from one state")
    for (leaf, a), (_, b) in zip(states.leaves(after), states.leaves(frozen), strict=True):
        _require_equal(a, b, f"{leaf} of a state before and after a call from it")
    assert_within(mixer.step(x[:, 0], after)[0], first[:, 0], "output", "one step")
    reset = mixer(x, states.reset(after, [1]))[0]
    assert_within(reset[1], y[1], "output", "a row that was reset")
    assert_within(reset[0], first[0], "output", "a row beside one that was reset")


def no_state(mixer: Mixer) -> None:
    """A mixer that is not causal has the parallel form alone, and refuses states."""
    require(mixer.forms == ("parallel",), f"not causal, but has the forms {mixer.forms}")
    x = sample(mixer)
    require(mixer(x)[1] is None, "not causal, but returns a state")
    for what, call in (
        ("empty_state", lambda: mixer.empty_state(1)),
        ("step", lambda: mixer.step(x[:, 0])),
    ):
        try:
            call()
        except ThreefoldError:
            continue
        require(False, f"not causal, but {what} is not refused")


def weights(mixer: Mixer) -> None:
    """Another mixer of the same shapes gives the same answers once it has the same weights."""
    other = copy.deepcopy(mixer)
    with torch.no_grad():
        for tensor in other.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(0.1)
    other.load_state_dict(mixer.state_dict())
    x = sample(mixer)
    _require_equal(other(x)[0], mixer(x)[0], "outputs of a copy with the same weights")


def autocast(mixer: Mixer) -> None:
    """Under autocast, outputs are finite and resemble those of float32; a refusal is fine."""
    wide = copy.deepcopy(mixer).float()
    x = sample(wide)
    expected, _ = wide(x)
    try:
        with torch.autocast("cpu", torch.bfloat16):
            y, after = wide(x)
            if wide.causal:
                wide(x[:, :1], after)
    except ThreefoldError:
        return
    require(y.isfinite().all(), "outputs are not finite")
    pair = torch.stack([y.detach().float().flatten(), expected.detach().flatten()])
    correlation = float(torch.corrcoef(pair)[0, 1])
    require(
        correlation > RESEMBLANCE,
        f"correlation with float32 is {correlation:.4f}, below {RESEMBLANCE}",
    )


def calls(mixer: Mixer) -> None:
    """Every linear map is called as a module; one whose weight is only read would ignore hooks."""
    maps = {name: part for name, part in mixer.named_modules() if isinstance(part, nn.Linear)}
    called: set[nn.Module] = set()
    hooks = [
        part.register_forward_hook(lambda part, *_: called.add(part)) for part in maps.values()
    ]
    try:
        mixer(sample(mixer))
    finally:
        for hook in hooks:
            hook.remove()
    missed = [name for name, part in maps.items() if part not in called]
    require(not missed, f"{', '.join(missed)}: never called; write self.{'.'.join(missed[:1])}(x)")


def not_finite(mixer: Mixer) -> None:
    """An element that is NaN makes an output NaN or infinite, so that a fault is found."""
    x = sample(mixer, rows=2)
    x[0, 19] = float("nan")
    for form in mixer.forms:
        y, _ = mixer(x, form=form)
        require(not y[0].isfinite().all(), f"{form}: NaN in an input is hidden by finite outputs")


def _describe(value: Any) -> str:
    return f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def _other_forms(mixer: Mixer) -> list[str]:
    first = "step" if "step" in mixer.forms else mixer.forms[0]
    return [form for form in mixer.forms if form != first]


def _require_equal(actual: Tensor, expected: Tensor, what: str) -> None:
    if not torch.equal(actual, expected):
        gap = (actual.detach().double() - expected.detach().double()).abs().max().item()
        require(False, f"{what}: they differ by up to {gap:.2e}")
