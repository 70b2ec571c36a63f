"""x ← x + mixer(norm(x)),  x ← x + channel(norm(x)): residual wiring around one or two mixers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import Any, ClassVar

from torch import Tensor, nn

from threefold.blocks import BLOCKS
from threefold.blocks.composite import Composite, without_empty
from threefold.blocks.norms import make_norm
from threefold.errors import ThreefoldError, nearest
from threefold.layers.checks import check_dropout
from threefold.layers.handover import HANDOVER, Handed, give, put, take
from threefold.layers.mixer import Mixer, Plan
from threefold.layers.padding import zero_padding
from threefold.layers.table import options_of
from threefold.memory.state import State

STACK_KEYWORDS = ("mixer", "channel", "cross", "depth")  # given by the stack, not the user


class Block(Composite):
    """A mixer and an optional channel mixer, each in a residual connection with its own norm.

    cross: cross-attention between the two, in a decoder.

    norm: rms or layer (None: as the wiring was published), with `eps` and (layer only) a bias.
    dropout: on the outputs added to the residual stream.  final_norm: whether a norm follows the
    last block; None: only if the wiring leaves the stream without one.
    """

    default_norm: ClassVar[str] = "rms"
    # Whether the output of a block is not normed, so that the last one needs a norm.
    needs_final_norm: ClassVar[bool] = True

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
        check_dropout(self.name, dropout=dropout)
        self.make_norm = partial(
            make_norm, norm or self.default_norm, self.width, eps=eps, bias=bias
        )
        self.has_final_norm = self.needs_final_norm if final_norm is None else final_norm
        self.depth = depth
        self.mixer = mixer
        self.mixer_norm = self.make_norm()
        self.cross = cross
        self.cross_norm = None if cross is None else self.make_norm()
        self.channel = channel
        self.channel_norm = None if channel is None else self.make_norm()
        self.dropout = nn.Dropout(dropout)
        self.declare_forms()
        for part in self.parts.values():
            self.hands_over(**part.handover)

    def final_norm(self) -> nn.Module:
        """The module after the last block of a stack: another norm, or the identity."""
        return self.make_norm() if self.has_final_norm else nn.Identity()

    @property
    def parts(self) -> dict[str, Mixer]:
        named = (("mixer", self.mixer), ("cross", self.cross), ("channel", self.channel))
        return {name: part for name, part in named if part is not None}

    @abstractmethod
    def before(self, x: Tensor, norm: nn.Module) -> Tensor:
        """The input of a mixer from the residual stream x."""

    @abstractmethod
    def after(self, x: Tensor, y: Tensor, norm: nn.Module) -> Tensor:
        """The residual stream after a mixer returned y."""

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        result: State = {}
        handed: Handed | None = state.get(HANDOVER)
        own: dict[str, Tensor] = {}
        for name, part in self.parts.items():
            norm: nn.Module = self._modules[f"{name}_norm"]  # type: ignore[assignment]
            carried = give(part.handover, state.get(name, {}), handed)
            # A norm may change the zeros after the end of a row.
            inputs = zero_padding(self.before(x, norm), lengths)
            part_form = _form_of(part, form, carried, inputs.shape[1])
            plan = Plan(part_form, lengths, state_checked=True)
            y, after = part(inputs, carried, plan=plan)
            result[name], new = take(after)
            own.update(new)
            x = self.after(x, self.dropout(zero_padding(y, lengths)), norm)
        return x, put(without_empty(result), own)


class PreNorm(Block):
    """x + f(norm(x)): the residual stream itself is never normed (GPT-2, Mamba)."""

    def before(self, x: Tensor, norm: nn.Module) -> Tensor:
        normed: Tensor = norm(x)
        return normed

    def after(self, x: Tensor, y: Tensor, norm: nn.Module) -> Tensor:
        return x + y


def block_class(name: str) -> type[Block]:
    """The class of a wiring, by name."""
    if name not in BLOCKS:
        raise ThreefoldError(f"unknown block {name!r}; {nearest(name, BLOCKS)}")
    module, _, cls = BLOCKS[name].partition(":")
    loaded: type[Block] = getattr(import_module(module), cls)
    return loaded


def block_options(name: str) -> tuple[str, ...]:
    """The options of a wiring that a user can set."""
    return tuple(o for o in options_of(block_class(name)) if o not in STACK_KEYWORDS)


def make_block_norm(entry: tuple[str, Mapping[str, Any]], width: int) -> nn.Module:
    """A norm like those inside the blocks of a spec."""
    name, options = entry
    kind = options.get("norm") or block_class(name).default_norm
    return make_norm(kind, width, eps=options.get("eps", 1e-5), bias=options.get("bias", True))


def _form_of(part: Mixer, form: str, carried: State, length: int) -> str:
    """The form of a part: a causal part without state runs several steps in one parallel call."""
    alone = form == "step" and length > 1 and not carried and "parallel" in part.forms
    return "parallel" if alone else form
