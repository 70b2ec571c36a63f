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
from threefold.layers.mixer import Mixer
from threefold.layers.padding import zero_padding
from threefold.layers.table import options_of
from threefold.memory.state import State

BUILT = ("mixer", "channel", "cross", "depth")  # what a stack gives to each block


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
        check_dropout(self.name, dropout=dropout)
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
        return x, without_empty(result)


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


def _form_of(part: Mixer, form: str, carried: State, length: int) -> str:
    """A causal part without state looks at one element at a time: it need not loop over several."""
    alone = form == "step" and length > 1 and not carried and "parallel" in part.forms
    return "parallel" if alone else form
