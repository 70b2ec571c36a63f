"""A mixer made of mixers: what blocks and stacks have in common.

Its state is a tree with the states of its parts by name.  A part without state has no entry.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from threefold.errors import ThreefoldError
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

    def _run(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        # The parts run the loop over steps themselves: the weights of one layer then stay in the
        # cache for all elements, and a part without state takes all elements in one call.
        stepped = self._replay_step(x, state, form, lengths)
        y, after = stepped or self.mix(x, state, form, lengths)
        none: Any = None
        return y, after if self.causal else none

    def _check_state(self, state: State | None, rows: int) -> State:
        if state is not None:
            self._refuse_state_if_not_causal()
            self._check_names(state)
        states = state or {}
        checked = {
            name: part._check_state(states.get(name), rows) for name, part in self.parts.items()
        }
        missing = [name for name in checked if checked[name] and name not in states]
        if state is not None and missing:
            self._refuse_tree(state)
        return without_empty(checked)

    def _check_names(self, state: Any) -> None:
        if not isinstance(state, dict):
            raise ThreefoldError(
                f"{self.name}: state must be a dict from empty_state or an earlier call, "
                f"given {type(state).__name__}"
            )
        if not state.keys() <= self.parts.keys():
            self._refuse_tree(state)

    def _refuse_tree(self, state: State) -> None:
        expected = without_empty({name: part.state_shapes(0) for name, part in self.parts.items()})
        raise ThreefoldError(
            f"{self.name}: state of another model: given parts {sorted(state)}, "
            f"expected {sorted(expected)}"
        )


def without_empty(parts: Mapping[str, Any]) -> State:
    """The entries that are not empty."""
    return {name: part for name, part in parts.items() if part}
