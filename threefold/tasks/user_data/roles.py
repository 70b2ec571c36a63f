"""Decide what the columns of a table are for; what is ambiguous is asked back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from threefold.data.column_types import ColumnFacts
from threefold.data.preprocessing import Roles
from threefold.data.tables import Table
from threefold.errors import AmbiguousError, ThreefoldError
from threefold.tasks.user_data.columns import CandidateColumns
from threefold.tasks.user_data.questions import (
    MOST_NUMERIC_CLASSES,
    name_columns,
    neighbours_correlate,
    row_options,
    tagging_options,
)
from threefold.tasks.user_data.settings import ReadSettings

LABEL_NAMES = ("label", "class", "target", "category")
SOURCE_NAMES, TARGET_NAMES = ("source", "src", "input"), ("target", "tgt", "output")
PAIR_SUFFIXES = (".tsv", ".tab", ".tsv.gz", ".tab.gz")


class TableReading(NamedTuple):
    """The kind of model for a table, the roles of its columns, and why others are not used."""

    kind: str
    roles: Roles
    dropped: dict[str, str]
    facts: Mapping[str, ColumnFacts]


def read_roles(table: Table, settings: ReadSettings) -> TableReading:
    """Choose kind and roles from the settings and the types of the columns."""
    return _Reader(table, settings).read()


class _Reader(CandidateColumns):
    """Chooses kind and roles."""

    def read(self) -> TableReading:
        kind = self.settings.kind
        readers = {
            "seq2seq": self._pairs,
            "forecaster": self._forecaster,
            "tagger": self._tagger,
            "classifier": self._examples,
            "hierarchical": self._examples,
            "regressor": self._examples,
        }
        if kind is not None and kind not in readers:
            raise ThreefoldError(
                f"{self.table.name}: a table cannot train a {kind} model; expected one of "
                f"{', '.join(readers)}"
            )
        return readers[kind]() if kind else self._without_kind()

    # ------------------------------------------------------------------------- without a kind

    def _without_kind(self) -> TableReading:
        if self.texts():
            return self._examples()
        if self.settings.group_column is not None:
            raise self.ambiguous(
                "rows are grouped into sequences, but it is not said what to predict for them",
                ["--kind classifier --target LABEL", "--kind tagger --target LABEL"],
            )
        if not self.numbers():
            raise self._without_numbers()
        labels = [n for n in self.of_type("category") if n not in self.targets]
        named = [n for n in self.free if n.lower() in LABEL_NAMES and n in self.numbers()]
        numeric = all(self.facts[name].type == "number" for name in self.targets)
        if self.targets and numeric and not set(map(str.lower, self.targets)) & set(LABEL_NAMES):
            return self._forecaster()
        if not self.targets and not labels and not named:
            return self._forecaster()
        return self._refuse_labels(self.targets or (*labels, *named))

    def _without_numbers(self) -> ThreefoldError:
        """The error for a table of categories and times only."""
        names = [n for n in self.facts if self.facts[n].type in ("text", "category")]
        if len(names) < 2:
            return ThreefoldError(
                f"{self.table.name}: no column of numbers to forecast, and no texts with labels; "
                f"the columns are {self.types()}"
            )
        source, target = names[0], (self.targets or names[1:])[0]
        pair = name_columns(features=source, target=target)
        options = [f"--kind classifier {pair}", f"--kind seq2seq {pair}", f"--kind tagger {pair}"]
        return self.ambiguous("no column of numbers, and texts that may be labels", options)

    def _refuse_labels(self, labels: Sequence[str]) -> TableReading:
        numbers = [name for name in self.numbers() if name not in labels]
        options = tagging_options(self.facts, self.numbers(), labels)
        label = name_columns(target=labels[0])
        options += [f"--kind classifier {label}    each row is one example"]
        options += [f"--kind tagger {label}        each row has a label, in order"]
        options += [f"--kind forecaster {name_columns(target=name)}" for name in numbers[:4]]
        if self.time is None and len(numbers) > 1:
            options.append(f"--kind regressor {name_columns(target=numbers[-1])}")
        if self.facts[labels[0]].type == "category" and self.time is not None:
            options += [name_columns(series_column=labels[0], target=name) for name in numbers[:1]]
        raise self.ambiguous(
            f"columns of numbers ({', '.join(numbers[:6])}) and what may be a label "
            f"({', '.join(labels[:3])})",
            options,
        )

    # ---------------------------------------------------------------------------- forecasters

    def _forecaster(self) -> TableReading:
        numbers = self.numbers()
        usable = [name for name in numbers if not self.unusable(name)]
        targets = self.targets or tuple(usable if len(usable) == 1 else ())
        if not targets and not usable:
            why = [f"{n}: {self.unusable(n)}" for n in numbers]
            shown = f" ({'; '.join(why)}: --target says to use it)" if why else ""
            raise ThreefoldError(
                f"{self.table.name}: no column of numbers to forecast{shown}; the columns are "
                f"{self.types()}"
            )
        if not targets:
            raise self._which_target(usable)
        for name in targets:
            self.need_number(name, "forecast")
        self._refuse_unordered(targets, usable)
        features = tuple(name for name in usable if name not in targets)
        roles = Roles(
            targets=targets,
            features=features,
            time=self.time,
            series=self.settings.series_column,
        )
        return self._result("forecaster", roles)

    def _which_target(self, usable: Sequence[str]) -> AmbiguousError:
        options = [name_columns(target=name) for name in usable[:8]]
        options.append(f"{name_columns(target=','.join(usable[:8]))}    all of them")
        if self.time is None:
            last = name_columns(target=usable[-1])
            options.append(f"--kind regressor {last}    every row is one example, in any order")
        return self.ambiguous("several columns could be forecast", options)

    def _refuse_unordered(self, targets: Sequence[str], usable: Sequence[str]) -> None:
        """Ask back if rows without times may be examples: neighbours are not correlated."""
        settings, target = self.settings, targets[0]
        said = (settings.kind, settings.horizon, settings.length, settings.series_column, self.time)
        if len(usable) < 2 or any(value is not None for value in said):
            return
        if neighbours_correlate(self.table.numbers(target)):
            return
        raise self.ambiguous(
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
        features = tuple(name for name in self.numbers() if name not in names)
        if settings.group_column is not None:
            group = settings.group_column
            roles = replace(predicted, features=features, time=self.time, group=group)
            return self._result(kind, roles)
        texts = self._text_features()
        if texts:
            return self._result(kind, replace(predicted, texts=texts))
        if not features:
            shown = ", ".join(name for name in names if name)
            raise ThreefoldError(
                f"{self.table.name}: no column of texts or numbers to predict {shown} from; the "
                f"columns are {self.types()}"
            )
        return self._result(kind, replace(predicted, features=features))

    def _predicted(self) -> Roles:
        """The column to predict; several for a regressor."""
        if len(self.targets) < 2:
            return Roles(label=self._target())
        if self.settings.kind not in (None, "regressor"):
            raise ThreefoldError(
                f"--target {','.join(self.targets)}: a {self.settings.kind} predicts one column; "
                "several need --kind regressor"
            )
        for name in self.targets:
            self.need_number(name, "predicted together with another")
        return Roles(targets=self.targets)

    def _target(self) -> str:
        """The column of the labels."""
        if len(self.targets) == 1:
            return self.targets[0]
        candidates = [name for name in self.free if name.lower() in LABEL_NAMES]
        categories = self.of_type("category")
        if not candidates:
            candidates = categories
        if not candidates:
            numbers = [n for n in self.numbers() if not self.unusable(n)]
            candidates = numbers if len(numbers) == 1 or self.settings.kind == "regressor" else []
        if len(candidates) == 1:
            self.free.remove(candidates[0])
            return candidates[0]
        if not candidates:
            raise self._no_labels()
        raise self.ambiguous(
            "several columns could be the label", [name_columns(target=n) for n in candidates[:8]]
        )

    def _no_labels(self) -> AmbiguousError:
        texts = self.texts()
        options = [name_columns(target=name) for name in self.free if name not in texts]
        if len(texts) > 1:
            pair = name_columns(features=texts[0], target=texts[1])
            options.append(f"--kind seq2seq {pair}    to translate")
            if self.table.name.lower().endswith(PAIR_SUFFIXES):
                options.append("--kind seq2seq    to translate; the first line is a pair, too")
        return self.ambiguous("no column looks like the labels", [*options, "--kind language"][:8])

    def _kind_of_target(self, target: str) -> str:
        facts = self.facts[target]
        if facts.type != "number":
            return "classifier"
        if not facts.whole or facts.distinct > MOST_NUMERIC_CLASSES:
            return "regressor"
        raise self.ambiguous(
            f"the column {target} has {facts.distinct} different whole numbers: they may be "
            "classes or quantities",
            [
                f"--kind classifier {name_columns(target=target)}    they are classes",
                f"--kind regressor {name_columns(target=target)}     they are quantities",
            ],
        )

    def _text_features(self) -> tuple[str, ...]:
        """The columns of text to read; several must be asked for."""
        wanted = self.settings.feature_names
        if wanted is not None:
            return tuple(n for n in wanted if self.facts[n].type in ("text", "category"))
        texts = self.texts()
        if len(texts) <= 1:
            return tuple(texts)
        named = [name for name in texts if name.lower() == "text"]
        if len(named) == 1 and not any(
            self.facts[n].type == "text" for n in texts if n != named[0]
        ):
            return tuple(named)
        options = [name_columns(features=name) for name in texts[:6]]
        options.append(f"{name_columns(features=','.join(texts[:6]))}    joined")
        raise self.ambiguous(f"{len(texts)} columns of text", options)

    # ------------------------------------------------------------------------ taggers, pairs

    def _tagger(self) -> TableReading:
        target, group = self._tag_column(), self.settings.group_column
        texts = self._words()
        if texts and group is None:
            numbered = [n for n in self.facts if n not in (*texts, target)]
            raise self.ambiguous(
                "which words are one sentence? Name the column of their number",
                [name_columns(group_column=n) for n in numbered[:6]] or ["--group-column COLUMN"],
            )
        features = () if texts else tuple(n for n in self.numbers() if n != target)
        if not texts and not features:
            raise ThreefoldError(
                f"{self.table.name}: no column of words or numbers to predict {target} from; the "
                f"columns are {self.types()}"
            )
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
            raise self.ambiguous(
                "several columns of words", [name_columns(features=n) for n in words[:6]]
            )
        return tuple(words)

    def _pairs(self) -> TableReading:
        texts = [n for n in self.facts if self.facts[n].type in ("text", "category")]
        targets = [n for n in texts if n in self.targets] or [
            n for n in texts if n.lower() in TARGET_NAMES
        ]
        if len(targets) != 1:
            options = [f"--kind seq2seq {name_columns(target=name)}" for name in texts[:6]]
            raise self.ambiguous("which column is the translation?", options)
        sources = self.settings.feature_names or tuple(n for n in texts if n != targets[0])
        if len(sources) != 1:
            raise self.ambiguous("several sources", [name_columns(features=n) for n in sources])
        return self._result("seq2seq", Roles(texts=tuple(sources), label=targets[0]))

    def _result(self, kind: str, roles: Roles) -> TableReading:
        used = {*roles.texts, *roles.targets, *roles.features}
        used |= {roles.label or "", roles.time or "", roles.group or "", roles.series or ""}
        other = "not in --features" if self.settings.features else "not used"
        dropped = {n: self.unusable(n) or other for n in self.facts if n not in used}
        return TableReading(kind, roles, dropped, self.facts)
