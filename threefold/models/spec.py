"""Spec: the complete description of a model, immutable, checked, and the same in Python and JSON.

Reading a spec does not import torch, unless a mixer has keywords, which are checked against its
constructor.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NoReturn, TypeAlias

from threefold.blocks import BLOCKS, CHANNEL_NAMES
from threefold.errors import ThreefoldError, nearest
from threefold.layers.table import mixer_entry, options_of
from threefold.models.table import KINDS

Entry: TypeAlias = "str | tuple[str, Mapping[str, Any]]"  # a name, or a name and its keywords

LARGEST = {"width": 2**20, "depth": 2**12, "vocabulary": 2**24}  # largest values; the smallest is 1


class FrozenOptions(dict[str, Any]):
    """An immutable dict of keywords."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("the options of a spec are immutable; make a new spec")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type[FrozenOptions], tuple[dict[str, Any]]]:
        return FrozenOptions, (dict(self),)


@dataclass(frozen=True, eq=False)
class Spec:
    """The description of a model, e.g. `Spec("language", width=64, depth=2, mixers="mamba")`.

    An entry of `mixers` is a name or (name, keywords); they repeat over the depth (a hybrid).
    `options` are the keywords of the kind.  Kinds that are not made of mixers (convolutional, swin)
    have neither mixers nor a channel mixer nor a wiring of blocks, and refuse them.
    """

    kind: str
    width: int
    depth: int
    mixers: str | Sequence[Entry] = ()
    vocabulary: int = 256
    channel: Entry = "swiglu"
    block: Entry = "pre_norm"
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_name("kind", self.kind, KINDS)
        for name, largest in LARGEST.items():
            _check_whole(name, getattr(self, name), largest)
        listed = _listed(self.mixers) if KINDS[self.kind].has_mixers else _none(self)
        entries = [_mixer(entry, place) for place, entry in enumerate(listed)]
        object.__setattr__(self, "mixers", tuple(entries))
        object.__setattr__(self, "channel", _channel(self.channel))
        object.__setattr__(self, "block", _block(self.block))
        object.__setattr__(self, "options", _kind_options(self.kind, self.options))

    @property
    def entries(self) -> tuple[tuple[str, Mapping[str, Any]], ...]:
        """The mixers as (name, keywords), without repetition over the depth."""
        return tuple(_split(entry) for entry in self.mixers)

    @property
    def channel_entry(self) -> tuple[str, Mapping[str, Any]]:
        """The channel mixer as (name, keywords)."""
        return _split(self.channel)

    @property
    def block_entry(self) -> tuple[str, Mapping[str, Any]]:
        """The wiring of the blocks as (name, keywords)."""
        return _split(self.block)

    def option(self, name: str, *otherwise: Any) -> Any:
        """An option of the kind, or its default; `otherwise` if the kind has no such option."""
        if otherwise and name not in KINDS[self.kind].options:
            return otherwise[0]
        return self.options.get(name, KINDS[self.kind].options[name])

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON: equal for equal specs, on every machine."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return {item.name: _thaw(getattr(self, item.name)) for item in fields(self)}

    def to_json(self) -> str:
        """Canonical JSON: sorted keys, no spaces."""
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_dict(cls, values: Any) -> Spec:
        """The inverse of `to_dict`."""
        if not isinstance(values, Mapping):
            raise ThreefoldError(f"a spec is a dict of fields, given {type(values).__name__}")
        names = [item.name for item in fields(cls)]
        for name in values:
            if name not in names:
                raise ThreefoldError(f"spec has no field {name!r}; {nearest(str(name), names)}")
        missing = [name for name in names[:4] if name not in values]
        if missing:
            raise ThreefoldError(f"the spec lacks {', '.join(missing)}")
        return cls(**values)

    @classmethod
    def from_json(cls, text: str) -> Spec:
        """The inverse of `to_json`."""
        try:
            values = json.loads(text)
        except ValueError as error:
            raise ThreefoldError(f"the spec is not JSON: {error}") from error
        return cls.from_dict(values)

    def differences(self, other: Spec) -> list[str]:
        """The fields in which two specs differ, with both values."""
        mine, theirs = self.to_dict(), other.to_dict()
        return [
            f"{name}: {mine[name]!r} and {theirs[name]!r}"
            for name in mine
            if mine[name] != theirs[name]
        ]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spec) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.digest)


def _check_name(what: str, name: Any, known: Iterable[str]) -> None:
    if not isinstance(name, str) or name not in known:
        raise ThreefoldError(f"unknown {what} {name!r}; {nearest(str(name), known)}")


def _check_whole(name: str, value: Any, largest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= largest:
        raise ThreefoldError(f"spec: {name} is {value!r}, expected an integer from 1 to {largest}")


def _listed(mixers: Any) -> list[Any]:
    if isinstance(mixers, str):
        return [mixers]
    if not isinstance(mixers, Sequence) or not mixers:
        raise ThreefoldError(
            f"spec: mixers is {mixers!r}, expected a name or a tuple of names and (name, keywords)"
        )
    return list(mixers)


def _none(spec: Spec) -> list[Any]:
    """No mixers; refuse them and what goes with them."""
    usual = {item.name: item.default for item in fields(Spec)}
    for name in ("mixers", "channel", "block"):
        value = getattr(spec, name)
        if value not in (usual[name], []):
            raise ThreefoldError(
                f"spec: {name} is {value!r}, but a {spec.kind} model is not made of mixers; leave "
                f"out {name}"
            )
    return []


def _mixer(entry: Any, place: int) -> Entry:
    where = f"entry {place} of mixers"
    name, options = _read(entry, where)
    known = mixer_entry(name)
    if options:  # only this case needs the class, and torch with it
        _check_keywords("mixer", name, options, options_of(known.load()))
    return (name, options) if options else name


def _channel(entry: Any) -> Entry:
    name, options = _read(entry, "channel")
    _check_name("channel", name, CHANNEL_NAMES)
    if options:
        from threefold.blocks.channel import CHANNELS

        accepted = () if name == "none" else options_of(CHANNELS[name])
        _check_keywords("channel", name, options, accepted)
    return (name, options) if options else name


def _block(entry: Any) -> Entry:
    name, options = _read(entry, "block")
    _check_name("block", name, BLOCKS)
    if options:
        from threefold.blocks.block import block_options

        _check_keywords("block", name, options, block_options(name))
    return (name, options) if options else name


def _read(entry: Any, where: str) -> tuple[str, FrozenOptions]:
    """A name and its frozen keywords."""
    if isinstance(entry, str):
        return entry, FrozenOptions()
    pair = isinstance(entry, Sequence) and len(entry) == 2
    if not pair or not isinstance(entry[0], str) or not isinstance(entry[1], Mapping):
        raise ThreefoldError(
            f'spec: {where} is {entry!r}, expected a name or (name, keywords), e.g. "gla" or '
            '("gla", {"heads": 4})'
        )
    options: FrozenOptions = _freeze(entry[1], f"{where}, {entry[0]!r}")
    return entry[0], options


def _check_keywords(
    what: str, name: str, options: Mapping[str, Any], accepted: Sequence[str]
) -> None:
    for option in options:
        if option == "width":
            raise ThreefoldError(
                f"{what} {name!r}: the width comes from the spec; leave out 'width'"
            )
        if option not in accepted:
            raise ThreefoldError(
                f"{what} {name!r} has no option {option!r}; {nearest(option, accepted)}"
            )


def _kind_options(kind: str, options: Any) -> FrozenOptions:
    if not isinstance(options, Mapping):
        raise ThreefoldError(f"spec: options is {options!r}, expected a dict")
    frozen: FrozenOptions = _freeze(options, "options")
    defaults = KINDS[kind].options
    for name, value in frozen.items():
        if name not in defaults:
            raise ThreefoldError(f"kind {kind!r} has no option {name!r}; {nearest(name, defaults)}")
        default = defaults[name]
        accepted = (int, float) if isinstance(default, float) else type(default)
        is_bool = isinstance(value, bool)
        if not isinstance(value, accepted) or is_bool != isinstance(default, bool):
            raise ThreefoldError(
                f"kind {kind!r}: option {name!r} is {value!r}, expected a "
                f"{type(default).__name__} such as {default!r}"
            )
    return frozen


def _freeze(value: Any, where: str) -> Any:
    """Tuples and frozen dicts of plain JSON values; anything else is refused."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(_freeze(item, where) for item in value)
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return FrozenOptions({key: _freeze(item, where) for key, item in value.items()})
    raise ThreefoldError(
        f"spec: {where} contains {value!r}, which JSON cannot represent; "
        "use numbers, strings, booleans, lists and dicts"
    )


def _thaw(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _thaw(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_thaw(item) for item in value]
    return value


def _split(entry: Entry) -> tuple[str, Mapping[str, Any]]:
    return (entry, FrozenOptions()) if isinstance(entry, str) else entry
