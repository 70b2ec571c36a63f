"""Decide what the columns of a table are for; what is ambiguous is asked back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from threefold.data.column_types import ColumnFacts, describe
from threefold.data.preprocessing import Roles
from threefold.data.preprocessing.categories import find_categories
from threefold.data.tables import Table
from threefold.errors import AmbiguousError, ThreefoldError, option
from threefold.tasks.user_data.column_use import (
    find_identifiers,
    list_reasons,
    why_left_out,
    why_unusable,
)
from threefold.tasks.user_data.questions import (
    MOST_NUMERIC_CLASSES,
    date_questions,
    forecast_options,
    group_options,
    label_options,
    list_types,
    name_columns,
    neighbours_correlate,
    number_options,
    row_options,
    same_in_groups,
    text_options,
    unlabelled_options,
)
from threefold.tasks.user_data.settings import ReadSettings
from threefold.tasks.user_data.text_roles import caption_roles, pair_roles, shows_captions

LABEL_NAMES = ("label", "class", "target", "category")
_TYPE_NAMES = {"time": "times", "category": "categories", "empty": "nothing"}


class TableReading(NamedTuple):
    """The kind of model for a table, the roles of its columns, and why others are not used."""

    kind: str
    roles: Roles
    dropped: dict[str, str]
    facts: Mapping[str, ColumnFacts]
    categories: Mapping[str, Sequence[str]]  # the known ones of those inputs that are not numbers


def read_roles(table: Table, settings: ReadSettings) -> TableReading:
    """Choose kind and roles from the settings and the types of the columns."""
    return _Reader(table, settings).read()


class _Reader:
    def __init__(self, table: Table, settings: ReadSettings) -> None:
        self.table, self.settings = table, settings
        self.facts = describe(table)
        self.questions: list[AmbiguousError] = []
        self.targets = settings.target_names
        settings.check_columns(table.name, self.facts)
        self.time = self._time_column()
        reserved = {self.time, settings.group_column, settings.series_column, *self.targets}
        wanted = settings.feature_names
        free = [n for n in self.facts if n not in reserved and (wanted is None or n in wanted)]
        self.identifiers = find_identifiers(self.facts, free, settings)
        self.free = [name for name in free if name not in self.identifiers]

    def read(self) -> TableReading:
        """Decide everything; all questions are asked together."""
        reading, time = None, self.time
        try:
            reading = self._read()
            time = reading.roles.time
        except AmbiguousError as error:
            self.questions.append(error)
        if time is not None:
            day_first = self.settings.day_first
            self.questions += date_questions(self.table, time, day_first, sure=reading is not None)
        if reading is None or self.questions:
            raise AmbiguousError.join(self.questions)
        return reading

    def _read(self) -> TableReading:
        kind = self.settings.kind
        readers = {
            "seq2seq": self._pairs,
            "captioner": self._captions,
            "forecaster": self._forecaster,
            "tagger": self._tagger,
            **dict.fromkeys(("classifier", "hierarchical", "regressor"), self._examples),
        }
        if kind is None:
            return self._without_kind()
        if kind in readers:
            return readers[kind]()
        names = ", ".join(readers)
        what = f"a table cannot train a {kind} model; expected one of {names}"
        raise self.table.error(None, what)

    def _ask(self, what: str, options: Sequence[str]) -> None:
        """Keep a question; reading goes on with the first answer, to find all the others."""
        self.questions.append(self._ambiguous(what, options))

    # ------------------------------------------------------------------------- without a kind

    def _without_kind(self) -> TableReading:
        if shows_captions(self.table, self.facts, self.settings):
            return self._captions()
        rows_are_named = bool(self.identifiers and self.targets) and self.time is None
        if self._texts() or (rows_are_named and self.settings.group_column is None):
            return self._examples()
        if self.settings.group_column is not None:
            return self._groups(self.settings.group_column)
        if not self._numbers():
            raise self._without_numbers()
        labels = [name for name in self.free if self._is_category(name)]
        named = [n for n in self.free if n.lower() in LABEL_NAMES and n in self._numbers()]
        numeric = all(self.facts[name].type == "number" for name in self.targets)
        if self.targets and numeric and not set(map(str.lower, self.targets)) & set(LABEL_NAMES):
            return self._forecaster()
        if not self.targets and not labels and not named:
            return self._forecaster()
        return self._refuse_labels(self.targets or (*labels, *named))

    def _groups(self, group: str) -> TableReading:
        """One target per group tells the kind; anything else is asked back."""
        if self.targets and all(same_in_groups(self.table, group, n) for n in self.targets):
            return self._examples()
        names = self.targets or [name for name in self.free if not self._unusable(name)]
        choices = group_options(self.table, self.facts, group, names)
        if not choices:
            what = f"rows are grouped by {group}, and no other column can be predicted"
            raise self.table.error(None, f"{what}; the columns are {self._types()}")
        what = "rows are grouped into sequences, but it is not said what to predict for them"
        if self.targets:
            what = f"{', '.join(self.targets)} differs within the groups of {group}"
        raise self._ambiguous(what, choices)

    def _without_numbers(self) -> ThreefoldError:
        """The error for a table of categories and times only."""
        names = [n for n in self.facts if self.facts[n].type in ("text", "category")]
        if len(names) < 2:
            return self._without("numbers to forecast, and no texts with labels")
        pair = {"features": names[0], "target": (self.targets or names[1:])[0]}
        choices = [name_columns(kind=k, **pair) for k in ("classifier", "seq2seq", "tagger")]
        return self._ambiguous("no column of numbers, and texts that may be labels", choices)

    def _refuse_labels(self, labels: Sequence[str]) -> TableReading:
        numbers = [name for name in self._numbers() if name not in labels]
        raise self._ambiguous(
            f"columns of numbers ({', '.join(numbers[:6])}) and what may be a label "
            f"({', '.join(labels[:3])})",
            label_options(self.facts, self._numbers(), labels, self.time is not None, self.targets),
        )

    # ---------------------------------------------------------------------------- forecasters

    def _forecaster(self) -> TableReading:
        numbers = self._numbers()
        usable = [name for name in numbers if not self._unusable(name)]
        targets = self.targets or tuple(usable if len(usable) == 1 else ())
        if not targets and not usable:
            shown = list_reasons({name: self._unusable(name) for name in numbers})
            raise self._without(f"numbers to forecast{shown}")
        if targets:
            self._ask_about_order(targets[0], usable)
        else:
            timed = self.time is not None
            self._ask("several columns could be forecast", forecast_options(usable, timed))
            targets = (usable[0],)
        for name in targets:
            self._need_number(name, "forecast")
        features = tuple(name for name in (*usable, *self._categories()) if name not in targets)
        roles = Roles(
            targets=targets,
            features=features,
            time=self.time,
            series=self.settings.series_column,
        )
        return self._result("forecaster", roles)

    def _ask_about_order(self, target: str, usable: Sequence[str]) -> None:
        """Ask back if rows without times may be examples: neighbours are not correlated."""
        settings = self.settings
        said = (settings.kind, settings.horizon, settings.length, settings.series_column, self.time)
        if len(usable) < 2 or any(value is not None for value in said):
            return
        if self.facts[target].type != "number" or neighbours_correlate(self.table.numbers(target)):
            return
        self._ask(
            f"there is no column of times, and neighbouring values of {target} are not correlated: "
            "are the rows a time series or separate examples?",
            row_options(self.facts[target]),
        )

    # ---------------------------------------------------------- one label or number per example

    def _examples(self) -> TableReading:
        settings = self.settings
        predicted = self._predicted()
        kind = settings.kind or self._kind_of_target(predicted.label or predicted.targets[0])
        names = (predicted.label, *predicted.targets)
        inputs = (*self._numbers(), *self._categories())
        features = tuple(name for name in inputs if name not in names)
        if settings.group_column is not None:
            predicted = replace(predicted, time=self.time, group=settings.group_column)
            return self._result(kind, replace(predicted, features=features))
        texts = self._text_features(kind, [name for name in names if name], features)
        if texts:
            return self._result(kind, replace(predicted, texts=texts))
        if not features:
            raise self._nothing_to_read("texts", ", ".join(name for name in names if name))
        return self._result(kind, replace(predicted, features=features))

    def _predicted(self) -> Roles:
        """The column to predict; several for a regressor."""
        if len(self.targets) < 2:
            return Roles(label=self._target())
        if self.settings.kind not in (None, "regressor"):
            raise ThreefoldError(
                f"{name_columns(target=self.targets)}: a {self.settings.kind} predicts one column; "
                f"several need {option('kind', 'regressor')}"
            )
        for name in self.targets:
            self._need_number(name, "predicted together with another")
        return Roles(targets=self.targets)

    def _target(self) -> str:
        """The column of the labels."""
        if len(self.targets) == 1:
            return self.targets[0]
        if self.settings.feature_names is not None:  # an input is not what is predicted
            raise self._no_labels()
        named = [name for name in self.free if name.lower() in LABEL_NAMES]
        candidates = named or [name for name in self.free if self._is_category(name)]
        if not candidates:
            numbers = [n for n in self._numbers() if not self._unusable(n)]
            candidates = numbers if len(numbers) == 1 or self.settings.kind == "regressor" else []
        if not candidates:
            raise self._no_labels()
        if len(candidates) > 1:
            long = [name for name in self._texts() if self.facts[name].type == "text"]
            read = {"features": long[0]} if len(long) == 1 else {}  # else asked after the label
            choices = [name_columns(**read, target=n) for n in candidates[:8]]
            self._ask("several columns could be the label", choices)
        self.free.remove(candidates[0])
        return candidates[0]

    def _no_labels(self) -> AmbiguousError:
        texts = self._texts()
        others = [name for name in self.free if name not in texts]
        options = unlabelled_options(self.table.name, texts, others)
        used = {*self.free, self.time, self.settings.group_column, self.settings.series_column}
        targets = [name_columns(target=name) for name in self.facts if name not in used]
        return self._ambiguous("no column looks like the labels", [*targets[:8], *options])

    def _kind_of_target(self, target: str) -> str:
        facts = self.facts[target]
        if facts.type != "number":
            return "classifier"
        if not facts.whole or facts.distinct > MOST_NUMERIC_CLASSES:
            return "regressor"
        self._ask(
            f"the column {target} has {facts.distinct} different whole numbers: they may be "
            "classes or quantities",
            number_options(target),
        )
        return "classifier"

    def _text_features(
        self, kind: str, targets: Sequence[str], features: Sequence[str]
    ) -> tuple[str, ...]:
        """The columns of text to read; several, or numbers beside them, must be asked for."""
        wanted = self.settings.feature_names
        if wanted is not None:
            types = {self.facts[name].type for name in wanted}
            if "text" not in types and "number" in types:
                return ()
            return tuple(n for n in wanted if self.facts[n].type in ("text", "category"))
        texts = self._texts()
        named = [name for name in texts if name.lower() == "text"]
        if len(named) == 1 and all(self.facts[n].type != "text" or n in named for n in texts):
            return tuple(named)
        known = () if self.questions else targets  # the label is asked for
        beside = [n for n in features if known and kind != "hierarchical" and not self._unusable(n)]
        if not texts or (len(texts) == 1 and not beside):
            return tuple(texts)
        what = f"{len(texts)} columns of text" if len(texts) > 1 else f"a text ({texts[0]})"
        what += f" beside other columns ({', '.join(beside[:6])})" if beside else ""
        self._ask(what, text_options(texts, known, beside, kind))
        return (texts[0],)

    # ------------------------------------------------------------------------ taggers, pairs

    def _tagger(self) -> TableReading:
        target, group = self._tag_column(), self.settings.group_column
        texts = self._words()
        if texts and group is None:
            numbered = [n for n in self.facts if n not in (*texts, target)]
            raise self._ambiguous(
                "which words are one sentence? Name the column of their number",
                [name_columns(group_column=n) for n in numbered[:6]]
                or [option("group_column", "COLUMN")],
            )
        features = () if texts else tuple(n for n in self._numbers() if n != target)
        if not texts and not features:
            raise self._nothing_to_read("words", target)
        roles = Roles(texts=texts, label=target, features=features, time=self.time, group=group)
        return self._result("tagger", roles)

    def _tag_column(self) -> str:
        """The column of the tags; beside words it is the one that is called so."""
        named = [n for n in self.free if n.lower() in (*LABEL_NAMES, "tag", "tags")]
        if not self.targets and len(named) == 1:
            self.free.remove(named[0])
            return named[0]
        return self._target()

    def _words(self) -> tuple[str, ...]:
        """The column of words, which may be text or categories; none if there are numbers."""
        wanted = self.settings.feature_names
        types = ("text", "category")
        words = [n for n in wanted or self.free if self.facts[n].type in types]
        if len(words) > 1:
            self._ask("several columns of words", [name_columns(features=n) for n in words[:6]])
        return tuple(words[:1])

    def _pairs(self) -> TableReading:
        return self._result("seq2seq", pair_roles(self.facts, self.settings, self._ambiguous))

    def _captions(self) -> TableReading:
        numbers = (*self._numbers(), *self._categories())
        roles = caption_roles(self.table, self.facts, self.settings, numbers, self._ambiguous)
        return self._result("captioner", roles)

    # ------------------------------------------------------------------------------- helpers

    def _result(self, kind: str, roles: Roles) -> TableReading:
        used = {*roles.texts, *roles.targets, *roles.features}
        used |= {roles.label or "", roles.time or "", roles.group or ""}
        used |= {roles.series or "", roles.image or ""}
        other = why_left_out(kind, roles, self.settings)
        dropped = {n: self._unusable(n) or other for n in self.facts if n not in used}
        codes = [name for name in roles.features if self.facts[name].type == "category"]
        categories = find_categories(self.table, codes)
        return TableReading(kind, roles, dropped, self.facts, categories)

    def _categories(self) -> list[str]:
        """Columns of categories that are inputs."""
        return [n for n in self.free if self._is_category(n) and not self._unusable(n)]

    def _numbers(self) -> list[str]:
        names = [*self.free, *(name for name in self.targets if name not in self.free)]
        return [name for name in names if self.facts[name].type == "number"]

    def _texts(self) -> list[str]:
        """Columns of text; one with few different values counts if it is called text."""
        words = [name for name in self.free if self.facts[name].type in ("text", "category")]
        return [name for name in words if not self._is_category(name)]

    def _is_category(self, name: str) -> bool:
        return self.facts[name].type == "category" and name.lower() != "text"

    def _unusable(self, name: str) -> str:
        """Why a column is not used as an input; empty if it is."""
        facts = self.facts[name]
        if facts.type != "empty" and name in (*self.targets, *(self.settings.feature_names or ())):
            return ""
        return why_unusable(facts, identifier=name in self.identifiers)

    def _time_column(self) -> str | None:
        if self.settings.time_column is not None:
            return self.settings.time_column
        times = [n for n, facts in self.facts.items() if facts.type == "time"]
        times = [name for name in times if name not in self.targets]
        if len(times) > 1:
            self._ask("several columns of times", [name_columns(time_column=n) for n in times])
        return times[0] if times else None

    def _need_number(self, name: str, why: str) -> None:
        facts = self.facts[name]
        if facts.type != "number":
            found = f"{_TYPE_NAMES.get(facts.type, facts.type)}, e.g. {facts.examples[:1]!r}"
            what = f"the column {name} cannot be {why}: it contains {found}; the columns are "
            raise self.table.error(None, what + self._types())

    def _nothing_to_read(self, other: str, target: str) -> ThreefoldError:
        return self._without(f"{other} or numbers to predict {target} from")

    def _without(self, what: str) -> ThreefoldError:
        return self.table.error(None, f"no column of {what}; the columns are {self._types()}")

    def _types(self) -> str:
        return list_types(self.facts)

    def _ambiguous(self, what: str, options: Sequence[str]) -> AmbiguousError:
        return AmbiguousError(f"{self.table.name}: {what} (columns: {self._types()})", options)
