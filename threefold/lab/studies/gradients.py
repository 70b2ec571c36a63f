"""‖∂s_T/∂s_t‖ over t: how much of a change of the state remains T − t elements later.

Below 1 the gradient vanishes, above 1 it explodes (Bengio, Simard & Frasconi 1994).
For the linear RNN it is the norm of the matrix power, ‖U^{T−t}‖.

`threefold lab gradients` trains mixers on the adding problem, prints whether they solve it, and
draws these norms; `--steps 0` shows them before training.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from threefold.drawing.figures import plain_figure
from threefold.errors import ThreefoldError
from threefold.lab.studies.adding import MIXERS, AddingResult, AddingStudy, study
from threefold.layers.mixer import Mixer
from threefold.memory import state as states
from threefold.memory.state import State
from threefold.models.backbone import Backbone
from threefold.tasks.adding import adding

MAX_STATE_SIZE = 4096  # numbers of a state whose full Jacobian is computed


def state_jacobians(mixer: Mixer, x: Tensor, state: State | None = None) -> Tensor:
    """∂s_T/∂s_t for t = 0 … T, [T+1, D, D], along one sequence x [T, width].

    s_t is the state after t elements: all floating-point numbers of its leaves in one vector,
    except a running maximum, which has no gradient.  t = T is the identity.
    """
    if x.dim() != 2 or not mixer.causal:
        raise ThreefoldError(
            f"state_jacobians: x is {tuple(x.shape)} and {mixer.name} is "
            f"{'causal' if mixer.causal else 'not causal'}; expected one sequence [length, width] "
            "and a mixer that carries a state"
        )
    path = _path(mixer, x, mixer.empty_state(1) if state is None else state)
    last = _flat(path[-1])
    if len(last) > MAX_STATE_SIZE:
        raise ThreefoldError(
            f"state_jacobians: the state has {len(last)} numbers, and its Jacobian their square; "
            f"expected at most {MAX_STATE_SIZE}: choose a smaller width"
        )
    rows = []
    for number in last:
        before = [leaf for state in path[:-1] for leaf in _differentiable(state)]
        gradients = torch.autograd.grad(number, before, retain_graph=True, materialize_grads=True)
        rows.append(torch.cat([grad.flatten() for grad in gradients]).view(len(path) - 1, -1))
    identity = torch.eye(len(last), dtype=last.dtype, device=last.device)
    return torch.cat([torch.stack(rows, 1), identity.unsqueeze(0)])


def gradient_norms(
    mixer: Mixer, x: Tensor, state: State | None = None, *, spectral: bool = True
) -> Tensor:
    """‖∂s_T/∂s_t‖ for t = 0 … T, [T+1]: the largest singular value, or the Frobenius norm."""
    jacobians = state_jacobians(mixer, x, state)
    order = 2 if spectral else "fro"
    norms: Tensor = torch.linalg.matrix_norm(jacobians, ord=order)
    return norms


def draw_gradients(curves: Mapping[str, Tensor], path: str | Path) -> None:
    """Draw norms by name, each [T+1] from `gradient_norms`, over the distance T − t."""
    figure = plain_figure(7, 4)
    axes = figure.subplots()
    for name, norms in curves.items():
        values = norms.detach().double().flip(0).cpu()
        # A logarithmic axis has no 0: the curve ends there.
        axes.plot(range(len(values)), values.masked_fill(values == 0, torch.nan), label=name)
    axes.axhline(1.0, color="grey", linewidth=0.8, linestyle=":")
    axes.set_yscale("log")
    axes.set_xlabel("distance T − t")
    axes.set_ylabel("‖∂s_T/∂s_t‖")
    axes.legend()
    figure.savefig(path)


def _path(mixer: Mixer, x: Tensor, state: State) -> list[State]:
    """The states after 0 … T elements, each a function of the one before."""
    with torch.enable_grad():
        state = states.transform(_leaf, state)
        path = [state]
        for element in x.detach().unsqueeze(1):
            _, state = mixer.step(element, state)
            path.append(state)
    return path


def _leaf(tensor: Tensor) -> Tensor:
    copy = tensor.detach().clone()
    return copy.requires_grad_() if copy.is_floating_point() else copy


def _differentiable(state: State) -> list[Tensor]:
    return [
        leaf
        for name, leaf in states.leaves(state)
        if leaf.is_floating_point() and leaf.requires_grad and name != "maximum"
    ]


def _flat(state: State) -> Tensor:
    return torch.cat([leaf.flatten() for leaf in _differentiable(state)])


def on_adding(name: str, plan: AddingStudy) -> tuple[AddingResult, Tensor]:
    """Train a mixer on the adding problem; its result, and the norms along one sequence."""
    outcome, model = study(name, plan)
    assert isinstance(model, Backbone)
    block: Any = model.stack.blocks[0]
    with torch.no_grad():
        x = model.embedding.look_up(adding(plan.length, seed=plan.seed).batch("test", 0, 1).inputs)
    return outcome, gradient_norms(block.mixer, x[0])


def report(mixers: Sequence[str], plan: AddingStudy, path: Path) -> Iterator[str]:
    """Train, measure and draw; yields two lines for each mixer."""
    distances = [d for d in (1, 10, 50, 100, 200, 500, 1000) if d <= plan.length]
    curves = {}
    for name in mixers or list(MIXERS):
        outcome, curves[name] = on_adding(name, plan)
        values = "  ".join(f"{d}: {curves[name][-1 - d]:.1e}" for d in distances)
        yield f"{outcome}\n{'':<16}norms by distance  {values}"
    draw_gradients(curves, path)
    yield f"wrote {path}"
