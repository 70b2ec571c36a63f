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
    """A mixer made of named mixers; it can do what all of them can."""

    @property
    @abstractmethod
    def parts(self) -> dict[str, Mixer]:
        """The mixers, by the names under which their states are kept."""

    def declare(self) -> None:
        """Take forms and causality from the parts, once they are made."""
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
        """Bytes that the state of one row takes after `length` elements."""
        self._refuse_state_if_not_causal()
        return sum(part.state_size(length) for part in self.parts.values())

    def _run(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        # The step in a loop is left to the parts: one layer's weights then stay in the cache for
        # all elements, and what carries nothing takes them all at once.
        stepped = self._step_at_once(x, state, form, lengths)
        y, after = stepped or self.mix(x, state, form, lengths)
        none: Any = None
        return y, after if self.causal else none

    def _check_state(self, state: State | None, rows: int) -> State:
        if state is not None:
            self._refuse_state_if_not_causal()
            self._check_names(state)
        given = state or {}
        checked = {
            name: part._check_state(given.get(name), rows) for name, part in self.parts.items()
        }
        missing = [name for name in checked if checked[name] and name not in given]
        if state is not None and missing:
            self._refuse_tree(state)
        return without_empty(checked)

    def _check_names(self, state: Any) -> None:
        if not isinstance(state, dict):
            raise ThreefoldError(
                f"{self.name}: state must be a dict made by empty_state or returned by an earlier "
                f"call; given {type(state).__name__}"
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
    """The entries that carry something."""
    return {name: part for name, part in parts.items() if part}
