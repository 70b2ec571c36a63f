"""Which columns of a table are no inputs of a model, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from threefold.data.column_types import ColumnFacts
from threefold.data.preprocessing import Roles
from threefold.data.preprocessing.categories import MOST_CATEGORIES
from threefold.errors import option
from threefold.tasks.user_data.description import MOST_SHOWN
from threefold.tasks.user_data.settings import ReadSettings, setting_name

WORD_KINDS = ("tagger", "captioner", "seq2seq")  # whose single words may all differ


def find_identifiers(
    facts: Mapping[str, ColumnFacts], free: Sequence[str], settings: ReadSettings
) -> list[str]:
    """The columns that only name the rows, where others remain to learn from."""
    if settings.feature_names is not None or settings.kind in WORD_KINDS:
        return []
    found = [name for name in free if facts[name].identifier and name.lower() != "text"]
    others = [name for name in free if name not in found and not why_unusable(facts[name], "text")]
    to_predict = 0 if settings.target_names else 1
    return found if len(others) > to_predict else []


def why_unusable(facts: ColumnFacts, *also: str, identifier: bool = False) -> str:
    """Why a column is no input of numbers, categories or types of `also`; empty if it is one."""
    if facts.type == "empty":
        return "it is empty"
    if identifier:
        every = facts.distinct >= facts.count - facts.missing
        return f"identifier: {'every' if every else 'almost every'} value occurs once"
    if facts.constant:
        return "it is constant"
    if facts.index:
        return "it only counts the rows"
    if facts.type == "category" and facts.distinct > MOST_CATEGORIES:
        return f"more than {MOST_CATEGORIES} categories"
    if facts.type in ("number", "category", *also):
        return ""
    return {"text": "text", "time": "a time"}.get(facts.type, "lists")


def list_reasons(reasons: Mapping[str, str]) -> str:
    """Why columns are no target, in brackets; of many columns, the first."""
    shown = [f"{name}: {why}" for name, why in list(reasons.items())[:MOST_SHOWN]]
    if more := len(reasons) - len(shown):
        shown.append(f"and {more:,} more")
    return f" ({'; '.join(shown)}: {option('target')} says to use it)" if shown else ""


def why_left_out(kind: str, roles: Roles, settings: ReadSettings) -> str:
    """Why a model does not read a column that could be an input."""
    if settings.features:
        return f"not in {setting_name('features')}"
    if roles.image is not None:
        return "the model reads images only"
    if roles.texts:
        return f"the model reads {roles.texts[0]} only"
    return f"a {kind} does not read it"
