"""x ← x + mixer(norm(x)),  x ← x + channel(norm(x)): residual wiring around one or two mixers.

`Composite` is what blocks and stacks have in common: a mixer made of mixers, its state the tree of
theirs.  A part that carries nothing has no entry in the tree.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from threefold.blocks import BLOCKS
from threefold.errors import ThreefoldError, nearest
from threefold.layers.mixer import Mixer
from threefold.layers.parts import RMSNorm
from threefold.memory.plan import FORMS
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
        return kept({name: part.state_shapes(length) for name, part in self.parts.items()})

    def empty_state(self, batch_size: int) -> State:
        """The state before the first element."""
        self._refuse_state_if_not_causal()
        return kept({name: part.empty_state(batch_size) for name, part in self.parts.items()})

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
        return kept(checked)

    def _check_names(self, state: Any) -> None:
        if not isinstance(state, dict):
            raise ThreefoldError(
                f"{self.name}: state must be a dict made by empty_state or returned by an earlier "
                f"call; given {type(state).__name__}"
            )
        if not state.keys() <= self.parts.keys():
            self._refuse_tree(state)

    def _refuse_tree(self, state: State) -> None:
        expected = kept({name: part.state_shapes(0) for name, part in self.parts.items()})
        raise ThreefoldError(
            f"{self.name}: state of another model: given parts {sorted(state)}, "
            f"expected {sorted(expected)}"
        )


class Block(Composite):
    """A mixer and perhaps a channel mixer after it, each wired around with its own norm."""

    def __init__(
        self, mixer: Mixer, channel: Mixer | None = None, *, depth: int = 1, dropout: float = 0.0
    ) -> None:
        super().__init__(mixer.width)
        self.depth = depth
        self.mixer = mixer
        self.mixer_norm = RMSNorm(self.width, eps=1e-5)
        self.channel = channel
        self.channel_norm = None if channel is None else RMSNorm(self.width, eps=1e-5)
        self.dropout = nn.Dropout(dropout)
        self.declare()

    @property
    def parts(self) -> dict[str, Mixer]:
        if self.channel is None:
            return {"mixer": self.mixer}
        return {"mixer": self.mixer, "channel": self.channel}

    @abstractmethod
    def before(self, x: Tensor, norm: nn.Module) -> Tensor:
        """What a mixer is given of the stream x."""

    @abstractmethod
    def after(self, x: Tensor, y: Tensor, norm: nn.Module) -> Tensor:
        """The stream x once a mixer has answered y."""

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        result: State = {}
        for name, part in self.parts.items():
            norm: nn.Module = self._modules[f"{name}_norm"]  # type: ignore[assignment]
            carried = state.get(name, {})
            y, result[name] = part._run(
                self.before(x, norm), carried, _form_of(part, form, carried), lengths
            )
            y = silence(y, lengths)
            x = self.after(x, self.dropout(y) if self.training else y, norm)
        return x, kept(result)


class PreNorm(Block):
    """x + f(norm(x)): the stream itself is never normalised (GPT-2, Mamba)."""

    def before(self, x: Tensor, norm: nn.Module) -> Tensor:
        normed: Tensor = norm(x)
        return normed

    def after(self, x: Tensor, y: Tensor, norm: nn.Module) -> Tensor:
        return x + y


def block_class(name: str) -> type[Block]:
    """The wiring of that name."""
    if name not in BLOCKS:
        raise ThreefoldError(f"unknown block {name!r}; {nearest(name, BLOCKS)}")
    module, _, cls = BLOCKS[name].partition(":")
    found: type[Block] = getattr(import_module(module), cls)
    return found


def silence(y: Tensor, lengths: Tensor | None) -> Tensor:
    """Zeros behind the end of each row, where a mixer may have left anything."""
    if lengths is None:
        return y
    real = torch.arange(y.shape[1], device=y.device) < lengths[:, None]
    return torch.where(real.unsqueeze(-1), y, torch.zeros((), dtype=y.dtype, device=y.device))


def kept(parts: Mapping[str, Any]) -> State:
    """The entries that carry something."""
    return {name: part for name, part in parts.items() if part}


def _form_of(part: Mixer, form: str, carried: State) -> str:
    """A causal part without state looks at one element at a time: it need not loop over them."""
    return "parallel" if form == "step" and not carried and "parallel" in part.forms else form
