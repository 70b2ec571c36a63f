"""Overrides of a configuration: --set training.steps=100, --set model.mixers.mamba.state_size=64.

A value is read as TOML, or else as text. `model.mixers.NAME.OPTION` sets an option of every mixer
of that name in the model.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from pydantic.fields import FieldInfo

from threefold.errors import ThreefoldError, nearest, override
from threefold.layers.table import MIXERS, options_of
from threefold.training.schema import Section

# What settings are called in other libraries, and what they were called before they had names of
# the field.
ELSEWHERE = {
    "lr": "training.learning_rate",
    "epochs": "training.steps",
    "max_steps": "training.steps",
    "optim": "training.optimizer",
    "max_grad_norm": "training.grad_clip",
    "batch": "data.batch_size",
    "seq_len": "data.length",
    "max_length": "data.length",
    "context_length": "data.length",
    "hidden_size": "model.width",
    "d_model": "model.width",
    "num_layers": "model.depth",
    "n_layer": "model.depth",
    "dropout": "model.options",
    "seconds": "training.time",
    "minutes": "training.time",
    "optimiser": "training.optimizer",
    "warmup": "training.warmup_fraction",
    "decay": "training.decay_fraction",
    "final": "training.final_lr",
    "clip": "training.grad_clip",
    "accumulate": "training.gradient_accumulation",
    "average": "training.ema",
    "own": "training.scheduled_sampling",
    "recompute": "training.gradient_checkpointing",
    "carry": "training.carry_state",
    "every": "training.eval_every",
    "save": "training.save_every",
    "keep": "training.keep_checkpoints",
    "non_finite": "training.on_non_finite",
    "level": "data.tokenizer",
    "column": "data.target",
    "rate": "data.sampling_rate",
    "order": "data.batching",
    "limit": "data.eval_examples",
}


def apply_overrides(
    config: type[Section], values: Mapping[str, Any], overrides: Iterable[str]
) -> dict[str, Any]:
    """The nested values with each `key=value` put in; unknown keys are refused."""
    changed = dict(values)
    mixer_options: list[tuple[str, list[str], Any]] = []
    for text in overrides:
        path, value = parse_override(text)
        if path[:2] == ["model", "mixers"] and len(path) > 2:
            mixer_options.append((text, path[2:], value))  # once the mixers are known
        else:
            _check_key(config, path)
            _put(changed, path, value, text)
    for text, path, value in mixer_options:
        _set_mixer_option(changed, path, value, text)
    return changed


def parse_override(text: str) -> tuple[list[str], Any]:
    """`training.steps=100` → (["training", "steps"], 100)."""
    key, equals, value = text.partition("=")
    path = [name.strip() for name in key.split(".")]
    if not equals or not all(path):
        raise ThreefoldError(f"{override(text)}: expected key=value, e.g. training.steps=100")
    try:
        return path, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return path, value.strip()


def fields_of(section: type[Section], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """All dotted keys of a section with their fields."""
    for name, field in section.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, Section):
            yield from fields_of(inner, f"{prefix}{name}.")
        else:
            yield prefix + name, field


def _check_key(config: type[Section], path: list[str]) -> None:
    """Refuse a section or key that does not exist, and name the nearest one."""
    section = config
    for depth, name in enumerate(path):
        if name not in section.model_fields:
            raise ThreefoldError(_unknown_key(config, path[: depth + 1]))
        inner = section.model_fields[name].annotation
        if not (isinstance(inner, type) and issubclass(inner, Section)):
            return
        section = inner


def _unknown_key(config: type[Section], path: list[str]) -> str:
    """What to say of a key that does not exist: the most similar one, or where they are listed."""
    key, name = ".".join(path), path[-1]
    known = dict(fields_of(config))
    inside = [other for other in known if len(path) > 1 and other.startswith(f"{path[0]}.")]
    same = [other for other in known if other.split(".")[-1] == name]
    close = get_close_matches(key, inside or [*config.model_fields, *known], n=1, cutoff=0.5)
    similar = [*filter(None, [ELSEWHERE.get(name)]), *same, *close]
    hint = f"did you mean {similar[0]!r}? " if similar else ""
    return f"unknown key {key!r}; {hint}`threefold config` lists all keys"


def _put(values: dict[str, Any], path: list[str], value: Any, text: str) -> None:
    for name in path[:-1]:
        inner = values.get(name, {})
        if not isinstance(inner, Mapping):
            raise ThreefoldError(f"{override(text)}: {name} is {inner!r} and has no keys")
        values[name] = dict(inner)
        values = values[name]
    values[path[-1]] = value


def _set_mixer_option(values: dict[str, Any], path: list[str], value: Any, text: str) -> None:
    name, *option = path
    if name not in MIXERS:
        raise ThreefoldError(f"{override(text)}: unknown mixer {name!r}; {nearest(name, MIXERS)}")
    if len(option) != 1:
        raise ThreefoldError(
            f"{override(text)}: expected model.mixers.{name}.OPTION=value; "
            f"`threefold mixers {name}` lists the options"
        )
    known = options_of(MIXERS[name].load())
    if option[0] not in known:
        raise ThreefoldError(
            f"{override(text)}: {name} has no option {option[0]!r}; {nearest(option[0], known)}"
        )
    model = dict(values.get("model", {}))
    entries = model.get("mixers", ("mamba",))
    entries = entries.split("+") if isinstance(entries, str) else entries
    if name not in map(_name_of, entries):
        raise ThreefoldError(
            f"{override(text)}: the model has no mixer {name!r}; it has "
            f"{', '.join(map(_name_of, entries))}"
        )
    model["mixers"] = [
        _with_option(entry, option[0], value) if _name_of(entry) == name else entry
        for entry in entries
    ]
    values["model"] = model


def _name_of(entry: Any) -> str:
    return str(entry if isinstance(entry, str) else entry[0]).strip()


def _with_option(entry: Any, option: str, value: Any) -> list[Any]:
    options = {} if isinstance(entry, str) else dict(entry[1])
    return [_name_of(entry), {**options, option: value}]
