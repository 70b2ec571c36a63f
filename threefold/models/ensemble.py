"""p(y | x) = 1/n Σ p_i(y | x): several models of one spec, trained from other seeds, as one.

    probabilities   of classes: the mean, given as its logarithm, so that they are logits as well
    numbers         values and quantiles: the mean; sorted quantiles stay sorted

An ensemble is a model of the same kind: it predicts, streams, saves and loads as its members do.
Its state holds those of all members, and its weights are one file under one checksum.
Lakshminarayanan et al. 2017, "Simple and Scalable Predictive Uncertainty Estimation Using Deep
Ensembles".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from threefold.errors import ThreefoldError
from threefold.models.model import Model
from threefold.models.spec import Spec
from threefold.models.table import build

NUMBERS = ("regressor", "forecaster")  # kinds whose answers are numbers
CLASSES = ("classifier", "hierarchical", "tagger", "vision", "convolutional", "swin")
ENSEMBLE_KINDS = (*CLASSES, *NUMBERS)


class Ensemble(Model):
    """What an ensemble has beside its kind; see `ensemble_of`."""

    members: nn.ModuleList

    def __init__(self, members: Sequence[Model]) -> None:
        Model.__init__(self, members[0].spec)
        self.members = nn.ModuleList(members)
        self.tokenizer, self.preprocessing = members[0].tokenizer, members[0].preprocessing

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            # What members have in common, such as the forms of their stacks, the first one says.
            members: Any = super().__getattr__("members")
            return getattr(members[0], name)

    def forward(self, inputs: Tensor, state: Any = None, **options: Any) -> tuple[Tensor, Any]:
        """The mean answer of the members, and their states."""
        return self._ask("__call__", inputs, state, options)

    def respond(
        self, inputs: Tensor, state: Any = None, *, last: bool = False
    ) -> tuple[Tensor, Any]:
        """The mean answer after each element, or after the last."""
        return self._ask("respond", inputs, state, {"last": last})

    def step(self, element: Tensor, state: Any = None, **options: Any) -> tuple[Tensor, Any]:
        """Run one element per row."""
        return self._ask("step", element, state, options)

    def empty_state(self, batch_size: int) -> Any:
        """The states of all members before the first element."""
        return {name: member.empty_state(batch_size) for name, member in self._named()}

    def state_size(self, length: int) -> int:
        """Bytes of the states of one row after `length` elements."""
        return sum(int(member.state_size(length)) for _, member in self._named())

    def check_state(self, state: Any, rows: int) -> None:
        """Raise an error unless `state` holds a state of each member."""
        names = [name for name, _ in self._named()]
        if not isinstance(state, dict) or sorted(state) != sorted(names):
            raise ThreefoldError(
                f"{self.name}: state of another model; expected the states of {len(names)} members"
            )
        for name, member in self._named():
            member.check_state(state[name], rows)

    def _named(self) -> list[tuple[str, Any]]:
        return list(self.members.named_children())

    def _ask(
        self, what: str, inputs: Tensor, state: Any, options: dict[str, Any]
    ) -> tuple[Tensor, Any]:
        outputs, states = [], {}
        for name, member in self._named():
            # Image models accept no state.
            before = {} if state is None else {"state": state[name]}
            output, states[name] = getattr(member, what)(inputs, **before, **options)
            outputs.append(output)
        return self._mean(torch.stack(outputs)), states

    def _mean(self, outputs: Tensor) -> Tensor:
        if self.kind in NUMBERS:
            return outputs.mean(0)
        return outputs.log_softmax(-1).logsumexp(0) - math.log(len(outputs))


@cache
def _ensemble_class(cls: type[Model]) -> type[Ensemble]:
    """Ensembles of a class of models, which are models of that class."""
    return type(f"{cls.__name__}Ensemble", (Ensemble, cls), {"__module__": __name__})


def ensemble_of(members: Sequence[Model]) -> Model:
    """One model of several of the same spec."""
    specs = {member.spec.digest for member in members}
    if len(members) < 2 or len(specs) != 1:
        raise ThreefoldError(
            f"an ensemble of {len(members)} models with {len(specs)} specs; expected two models or "
            "more of one spec"
        )
    check_kind(members[0].kind)
    return _ensemble_class(type(members[0]))(members)


def check_kind(kind: str) -> None:
    """Refuse a kind of model whose answers have no mean."""
    if kind not in ENSEMBLE_KINDS:
        raise ThreefoldError(
            f"a {kind} model writes texts, of which there is no mean; ensembles are for "
            f"{', '.join(ENSEMBLE_KINDS)} models"
        )


def build_members(spec: Spec, members: int) -> Model:
    """A model of a spec, or an ensemble of as many members."""
    if not members:
        return build(spec)
    return ensemble_of([build(spec) for _ in range(members)])


def member_count(model: Model) -> int:
    """The number of members of an ensemble; 0 for a model of its own."""
    return len(model.members) if isinstance(model, Ensemble) else 0
