"""x ← x + mixer(norm(x)),  x ← x + channel(norm(x)): residual wiring around one or two mixers.

`Composite` is what blocks and stacks have in common: a mixer made of mixers, its state the tree of
theirs.  A part that carries nothing has no entry in the tree.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import Any, ClassVar

from torch import Tensor, nn

from threefold.blocks import BLOCKS
from threefold.blocks.norms import make_norm
from threefold.errors import ThreefoldError, nearest
from threefold.layers.mixer import Mixer
from threefold.layers.padding import zero_padding
from threefold.layers.table import options_of
from threefold.memory.forms import FORMS
from threefold.memory.state import State

BUILT = ("mixer", "channel", "cross", "depth")  # what a stack gives to each block


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
    """A mixer and perhaps a channel mixer after it, each wired around with its own norm.

    cross: what looks at a source between the two, in a decoder.

    norm: rms or layer (None: as the wiring was published), with `eps` and (layer only) a bias.
    dropout: of what is added to the stream.  final_norm: whether another norm follows a stack of
    these; None: if the wiring leaves the stream without one.
    """

    usual_norm: ClassVar[str] = "rms"
    # Whether the stream leaves the last block without a norm.
    ends_raw: ClassVar[bool] = True

    def __init__(
        self,
        mixer: Mixer,
        channel: Mixer | None = None,
        *,
        cross: Mixer | None = None,
        depth: int = 1,
        norm: str | None = None,
        eps: float = 1e-5,
        bias: bool = True,
        dropout: float = 0.0,
        final_norm: bool | None = None,
    ) -> None:
        super().__init__(mixer.width)
        if not 0 <= dropout < 1:
            raise ThreefoldError(f"{self.name}: dropout is {dropout}, expected from 0 to below 1")
        self.make_norm = partial(make_norm, norm or self.usual_norm, self.width, eps=eps, bias=bias)
        self.followed = self.ends_raw if final_norm is None else final_norm
        self.depth = depth
        self.mixer = mixer
        self.mixer_norm = self.make_norm()
        self.cross = cross
        self.cross_norm = None if cross is None else self.make_norm()
        self.channel = channel
        self.channel_norm = None if channel is None else self.make_norm()
        self.dropout = nn.Dropout(dropout)
        self.declare()

    def final_norm(self) -> nn.Module:
        """What follows the last of several such blocks: another norm, or nothing."""
        return self.make_norm() if self.followed else nn.Identity()

    @property
    def parts(self) -> dict[str, Mixer]:
        named = (("mixer", self.mixer), ("cross", self.cross), ("channel", self.channel))
        return {name: part for name, part in named if part is not None}

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
            # A norm may move the zeros behind the end of a row.
            given = zero_padding(self.before(x, norm), lengths)
            how = _form_of(part, form, carried, given.shape[1])
            y, result[name] = part._run(given, carried, how, lengths)
            y = zero_padding(y, lengths)
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


def block_options(name: str) -> tuple[str, ...]:
    """The keywords that a wiring may be given."""
    return tuple(o for o in options_of(block_class(name)) if o not in BUILT)


def norm_of(entry: tuple[str, Mapping[str, Any]], width: int) -> nn.Module:
    """A norm like those inside blocks of that wiring."""
    name, options = entry
    kind = options.get("norm") or block_class(name).usual_norm
    return make_norm(kind, width, eps=options.get("eps", 1e-5), bias=options.get("bias", True))


def kept(parts: Mapping[str, Any]) -> State:
    """The entries that carry something."""
    return {name: part for name, part in parts.items() if part}


def _form_of(part: Mixer, form: str, carried: State, length: int) -> str:
    """A causal part without state looks at one element at a time: it need not loop over several."""
    alone = form == "step" and length > 1 and not carried and "parallel" in part.forms
    return "parallel" if alone else form
