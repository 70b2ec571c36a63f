"""A mixer made of mixers: what blocks and stacks have in common.

Its state is a tree with the states of its parts by name.  A part without state has no entry.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from threefold.errors import ThreefoldError
from threefold.layers.handover import without
from threefold.layers.mixer import Mixer
from threefold.memory.forms import FORMS
from threefold.memory.state import State


class Composite(Mixer):
    """A mixer made of named mixers, with the forms that all of them have."""

    @property
    @abstractmethod
    def parts(self) -> dict[str, Mixer]:
        """The mixers by their names in the state."""

    def declare_forms(self) -> None:
        """Set `forms` and `causal` from the parts, at the end of the constructor."""
        parts = self.parts.values()
        self.forms = tuple(f for f in FORMS if all(f in part.forms for part in parts))
        self.causal = all(part.causal for part in parts)

    def state_shapes(self, length: int) -> Mapping[str, Any]:
        """Shapes of the leaves of one row after `length` elements."""
        return without_empty({name: part.state_shapes(length) for name, part in self.parts.items()})

    def empty_state(self, batch_size: int) -> State:
        """The state before the first element."""
        self._refuse_state_if_not_causal()
        return without_empty(
            {name: part.empty_state(batch_size) for name, part in self.parts.items()}
        )

    def state_size(self, length: int) -> int:
        """Bytes of the state of one row after `length` elements."""
        self._refuse_state_if_not_causal()
        return sum(part.state_size(length) for part in self.parts.values())

    def check_state(self, state: Any, rows: int) -> None:
        """Raise an error unless `state` is a state of this mixer for a batch of `rows`."""
        self._refuse_state_if_not_causal()
        state = without(state)
        if not isinstance(state, dict):
            raise ThreefoldError(
                f"{self.name}: state must be a dict from empty_state or an earlier call, "
                f"given {type(state).__name__}"
            )
        parts = self.parts
        missing = any(part.state_shapes(0) for name, part in parts.items() if name not in state)
        if missing or not state.keys() <= parts.keys():
            raise ThreefoldError(
                f"{self.name}: state of another model: given parts {sorted(map(str, state))}, "
                f"expected {sorted(self.state_shapes(0))}"
            )
        for name, branch in state.items():
            parts[name].check_state(branch, rows)

    def _start_state(self, rows: int) -> State:
        # Next to a part that is not causal, the others still start from their empty states.
        return without_empty({name: part._start_state(rows) for name, part in self.parts.items()})

    def _mix_elements(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        # The parts run the loop over steps themselves: the weights of one layer then stay in the
        # cache for all elements, and a part without state takes all elements in one call.
        return self.mix(x, state, form, lengths)


def without_empty(parts: Mapping[str, Any]) -> State:
    """The entries that are not empty."""
    return {name: part for name, part in parts.items() if part}
