"""A stack: `depth` blocks one after another; several mixers repeat over the depth (a hybrid)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from threefold.blocks.block import Block, block_class
from threefold.blocks.channel import CHANNELS, channel
from threefold.blocks.composite import Composite, without_empty
from threefold.blocks.cross import Cross
from threefold.errors import ThreefoldError
from threefold.layers.handover import give, take
from threefold.layers.mixer import Mixer, Plan
from threefold.layers.table import MIXERS, mixer, options_of
from threefold.memory.state import State

Entry = tuple[str, Mapping[str, Any]]  # a name and the keywords of its constructor


class Stack(Composite):
    """Blocks one after another, each with the next mixer of `mixers`, which repeat.

    cross: keywords of the cross-attention in each block (decoders only).
    """

    gradient_checkpointing = False  # run blocks again in the backward pass

    def __init__(
        self,
        width: int,
        depth: int,
        mixers: Sequence[Entry],
        *,
        channel: Entry = ("swiglu", {}),
        block: Entry = ("pre_norm", {}),
        dropout: float = 0.0,
        cross: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(width)
        if depth < 1 or not mixers:
            raise ThreefoldError(
                f"a stack of {depth} blocks and {len(mixers)} mixers; expected at least 1 of each"
            )
        blocks = []
        for layer in range(depth):
            entry = mixers[layer % len(mixers)]
            first = not any(same_mixer(entry, mixers[i]) for i in range(min(layer, len(mixers))))
            place = {"layer": layer, "depth": depth, "first": first}
            parts = self.make_mixer(entry, place), make_channel(channel, width, place)
            attention = None if cross is None else make_cross(cross, width)
            blocks.append(make_block(block, *parts, attention, depth=depth, dropout=dropout))
        self.blocks = nn.ModuleList(blocks)
        self.declare_forms()

    def make_mixer(self, entry: Entry, place: Mapping[str, int]) -> Mixer:
        """The mixer of one block."""
        return make_mixer(entry, self.width, place)

    @property
    def parts(self) -> dict[str, Mixer]:
        parts: dict[str, Any] = dict(self.blocks._modules)
        return parts

    def final_norm(self) -> nn.Module:
        """The module after the stack: a norm, or the identity if the wiring ends with one."""
        last: Any = self.blocks[-1]
        norm: nn.Module = last.final_norm()
        return norm

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        result: State = {}
        handed: dict[str, Tensor] = {}
        plan = Plan(form, lengths, state_checked=True)
        recompute = self.gradient_checkpointing and self.training and torch.is_grad_enabled()
        for name, block in self.parts.items():
            carried = give(block.handover, state.get(name, {}), handed)
            if recompute:
                x, after = checkpoint(block, x, carried, plan=plan, use_reentrant=False)
            else:
                x, after = block(x, carried, plan=plan)
            result[name], new = take(after)
            handed.update(new)
        return x, without_empty(result)


def same_mixer(one: Entry, other: Entry) -> bool:
    """Whether two entries are of one mixer, with any options; wrapped mixers are compared too."""
    return (one[0], one[1].get("mixer")) == (other[0], other[1].get("mixer"))


def make_mixer(entry: Entry, width: int, place: Mapping[str, int]) -> Mixer:
    """Make a mixer by name, with the keywords of its `place` that its constructor takes.

    layer, depth: its index and the number of layers; first: no earlier layer has this mixer.
    """
    accepted = options_of(MIXERS[entry[0]].load()) if entry[0] in MIXERS else ()
    return _make(mixer, "mixer", entry, width, place, accepted)


def make_channel(entry: Entry, width: int, place: Mapping[str, int]) -> Mixer | None:
    """Make a channel mixer by name; None for "none"."""
    if entry[0] == "none":
        return None
    accepted = options_of(CHANNELS[entry[0]]) if entry[0] in CHANNELS else ()
    return _make(channel, "channel", entry, width, place, accepted)


def make_cross(options: Mapping[str, Any], width: int) -> Cross:
    """Make the cross-attention of a block."""
    with _named("cross-attention", "cross", width, options):
        return Cross(width, **options)


def make_block(
    entry: Entry,
    mixer: Mixer,
    channel: Mixer | None,
    cross: Mixer | None = None,
    *,
    depth: int,
    dropout: float,
) -> Block:
    """Make a block by name; its keywords override `dropout`."""
    name, options = entry
    cls, keywords = block_class(name), {"dropout": dropout, **options}
    with _named("block", name, mixer.width, options):
        return cls(mixer, channel, cross=cross, depth=depth, **keywords)


def bidirectional_entry(entry: Entry) -> Entry:
    """The entry of a causal mixer run in both directions."""
    name, options = entry
    return "bidirectional", {"mixer": name, "options": options}


def non_causal_entry(entry: Entry) -> Entry:
    """The entry of a mixer that sees the whole sequence.

    A mixer with the keyword `causal` (attention) gets causal=False, any other causal mixer runs in
    both directions, and a mixer that is not causal stays as it is.
    """
    name, options = entry
    if name not in MIXERS:
        return entry  # an unknown name is refused when the mixer is made
    cls = MIXERS[name].load()
    if "causal" in options_of(cls):
        return name, {**options, "causal": False}
    return bidirectional_entry(entry) if cls.causal else entry


def _make(
    maker: Callable[..., Mixer],
    kind: str,
    entry: Entry,
    width: int,
    place: Mapping[str, int],
    accepted: Sequence[str],
) -> Mixer:
    name, options = entry
    placed = {key: value for key, value in place.items() if key in accepted}
    with _named(kind, name, width, options):
        return maker(name, **{**placed, **options, "width": width})


@contextmanager
def _named(kind: str, name: str, width: int, options: Mapping[str, Any]) -> Iterator[None]:
    """Add the name and the keywords of a part to errors of its constructor."""
    try:
        yield
    except (TypeError, ValueError, RuntimeError, ZeroDivisionError) as error:
        shown = "".join(f", {key}={value!r}" for key, value in options.items())
        raise ThreefoldError(f"{kind} {name!r} with width={width}{shown}: {error}") from error
