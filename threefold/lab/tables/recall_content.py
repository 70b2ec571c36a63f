"""What the trained models of the table of recall say, beside the published figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from threefold.drawing.axes import Axis
from threefold.drawing.charts import Figure, Line, line_chart
from threefold.drawing.ranges import Range, range_chart
from threefold.lab.tables.recall_tasks import (
    SOLVED,
    TASKS,
    RecallSizes,
    RecallTask,
)
from threefold.lab.tables.table import TableContent, TableSection, TextGrid
from threefold.layers.table import MIXERS


@dataclass(frozen=True)
class RecallContent:
    """The table of trained models; scores by task and mixer, one for each seed."""

    sizes: RecallSizes
    scores: Mapping[tuple[str, str], list[dict[str, Any]]]

    def content(self) -> TableContent:
        return TableContent(
            self.sentence(),
            self.summary(),
            self.sections(),
            list(self.differences()),
            list(self.setup()),
            SOURCES,
            self.sizes.mixers,
        )

    def accuracy(self, task: RecallTask, mixer: str) -> float:
        """The mean over seeds."""
        return fmean(one["test"] for one in self.scores[task.name, mixer])

    def solved(self, task: RecallTask) -> list[str]:
        """The mixers that solve a task, to the precision of a run that stops when it does."""
        return [m for m in self.sizes.mixers if self.accuracy(task, m) >= SOLVED - 0.02]

    def sentence(self) -> str:
        every = [m for m in self.sizes.mixers if all(m in self.solved(task) for task in TASKS)]
        if not every:
            return "No mixer solves all three tasks in this many steps"
        return f"All three tasks are solved by {_join(every)}"

    def summary(self) -> list[str]:
        parts = []
        for task in TASKS:
            order = sorted(self.sizes.mixers, key=lambda m: -self.accuracy(task, m))
            best, worst = order[0], order[-1]
            solved = self.solved(task)
            parts.append(
                f"{task.title.capitalize()} ({task.shows}): "
                f"{len(solved)} of {len(order)} mixers solve it; "
                f"{best} {_percent(self.accuracy(task, best))}, "
                f"{worst} {_percent(self.accuracy(task, worst))}."
            )
        return parts

    def sections(self) -> list[TableSection]:
        grids = [self.accuracies()]
        if self.sizes.longer:
            grids.append(self.longer())
        return [
            TableSection(
                "result",
                "Result",
                "Accuracy on the test split, in per cent of the answers that count; published "
                "figures are for other sizes of the tasks.",
                tuple(grids),
                tuple(self.ranges(task) for task in TASKS),
            ),
            TableSection(
                "learning",
                "Learning curves",
                "Accuracy on the validation split; a run ends when the task is solved.",
                figures=tuple(self.curves(task) for task in TASKS),
            ),
        ]

    def accuracies(self) -> TextGrid:
        header = ["mixer"]
        for task in TASKS:
            header += [f"{task.title}, %", "published, %", "steps"]
        rows = [(mixer, *self._cells(mixer)) for mixer in self.sizes.mixers]
        chance = [f"{100 * self.chance(task):.1f}" for task in TASKS]
        rows.append(("chance", *(cell for value in chance for cell in (value, "–", "–"))))
        text = "Published: " + "; ".join(f"{t.title}: {t.published_for}" for t in TASKS) + "."
        return TextGrid("Accuracy", text, tuple(header), tuple(rows))

    def _cells(self, mixer: str) -> Iterator[str]:
        for task in TASKS:
            runs = self.scores[task.name, mixer]
            published = task.published.get(mixer)
            yield _spread([one["test"] for one in runs])
            yield "–" if published is None else f"{100 * published:.1f}"
            yield f"{round(fmean(one['steps'] for one in runs)):,}"

    def chance(self, task: RecallTask) -> float:
        """The accuracy of guessing."""
        sizes = self.sizes.options[task.name]
        if task.name == "recall":
            return 1 / sizes["pairs"]
        return 1 / 14 if task.name == "selective_copying-mini" else 1 / 16

    def longer(self) -> TextGrid:
        trained = self.sizes.options["induction_heads"]["length"]
        header = ("mixer", *(f"{n:,} elements, %" for n in (trained, *self.sizes.longer)))
        rows = []
        for mixer in self.sizes.mixers:
            runs = self.scores["induction_heads", mixer]
            cells = [_spread([one["test"] for one in runs])]
            for n in self.sizes.longer:
                known = [one["lengths"][str(n)] for one in runs if str(n) in one["lengths"]]
                cells.append(_spread(known) if known else "–")
            rows.append((mixer, *cells))
        text = (
            f"Trained at {trained:,} elements. – : learned positions end at the training length. "
            "Published: Mamba stays at 100 % up to 1,048,576 elements after training at 256 (Gu & "
            "Dao 2023, table 11)."
        )
        return TextGrid("Induction heads at longer lengths", text, header, tuple(rows))

    def ranges(self, task: RecallTask) -> Figure:
        rows = [
            Range(
                mixer,
                series,
                self.accuracy(task, mixer),
                float("nan"),
                [one["test"] for one in self.scores[task.name, mixer]],
            )
            for series, mixer in enumerate(self.sizes.mixers)
        ]
        axis = Axis("accuracy", "percent", better="high")
        described = f"Accuracy on the test split; chance is {_percent(self.chance(task))}."
        return range_chart(task.title.capitalize(), described, rows, axis)

    def curves(self, task: RecallTask) -> Figure:
        lines = [
            Line(mixer, series, [tuple(point) for point in runs[0]["curve"]])
            for series, mixer in enumerate(self.sizes.mixers)
            for runs in [self.scores[task.name, mixer]]
        ]
        return line_chart(
            f"{task.title.capitalize()}: learning curves",
            "Validation accuracy of the first seed by training steps.",
            lines,
            Axis("steps", "count"),
            Axis("accuracy", "percent", better="high"),
        )

    def differences(self) -> Iterator[str]:
        for task in TASKS:
            size = self.sizes.options[task.name]
            given = ", ".join(f"{name} {value:,}" for name, value in size.items())
            yield (
                f"{task.title.capitalize()} has other sizes here: {given}. Published: "
                f"{task.published_for}. Equal figures are not to be expected."
            )
            for mixer, published in task.published.items():
                if mixer in self.sizes.mixers:
                    yield from self._difference(task, mixer, published)
        yield (
            "Attention has its own positions, embeddings and number of steps, so its row is not "
            "trained like the others. "
            f"Every model had at most {self._most_steps():,} steps (the others "
            f"{max(self.sizes.steps.values()):,}) and one learning rate; the papers train far "
            "longer and choose the rate for each model. A low score says that a mixer has not "
            "learnt a task in this time, not that it cannot."
        )

    def _difference(self, task: RecallTask, mixer: str, published: float) -> Iterator[str]:
        ours = self.accuracy(task, mixer)
        if ours > published + 0.05:
            why = "the task is shorter here and needs less memory"
        elif ours < published - 0.05:
            why = f"it was trained for {self.sizes.steps_of(task.name, mixer):,} steps only"
        else:
            return
        yield (
            f"{mixer} on {task.title}: {_percent(ours)} here, {_percent(published)} published; "
            f"likely because {why}."
        )

    def _most_steps(self) -> int:
        return max(self.sizes.steps_of(t.name, m) for t in TASKS for m in self.sizes.mixers)

    def _steps(self, task: RecallTask) -> str:
        usual = self.sizes.steps[task.name]
        more = self.sizes.steps_of(task.name, "attention")
        return f"{task.title} {usual:,}" + f" (attention {more:,})" * (more != usual)

    def setup(self) -> Iterator[str]:
        sizes = self.sizes
        yield (
            "Models: an embedding, two blocks with one mixer each, no feed-forward parts, width "
            f"{sizes.width}. Embeddings start with a standard deviation of 0.02; those of "
            "attention are multiplied by √width in selective copying, as in its paper, and start "
            "with 0.3 in the other tasks. Attention has two heads, learned positions in "
            "associative recall and rotary ones elsewhere; linear attention has two heads and "
            "learned positions."
        )
        counts = sorted(one["parameters"] for runs in self.scores.values() for one in runs)
        yield f"Between {counts[0]:,} and {counts[-1]:,} parameters, depending on the mixer."
        steps = ", ".join(self._steps(task) for task in TASKS)
        yield (
            f"Training: AdamW, learning rate {sizes.learning_rate:g} with a cosine schedule, "
            f"batches of {sizes.batch_size}, at most this many steps: {steps}. A run ends when "
            f"{100 * SOLVED:.0f} % of {sizes.examples:,} validation examples are right."
        )
        seeds = "one seed" if sizes.seeds == 1 else f"the mean of {sizes.seeds} seeds"
        yield (
            f"Scores are those of the whole test split, at longer lengths of {sizes.examples:,} "
            f"examples; {seeds}, one thread."
        )


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _spread(values: list[float]) -> str:
    """The mean in per cent, and the range if there are several seeds."""
    mean = f"{100 * fmean(values):.1f}"
    if len(values) == 1:
        return mean
    return f"{mean} ({100 * min(values):.1f} – {100 * max(values):.1f})"


def _join(names: list[str]) -> str:
    titles = [MIXERS[name].title for name in names]
    return " and ".join(filter(None, [", ".join(titles[:-1]), titles[-1]]))


SOURCES = (
    'Gu & Dao 2023, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", tables 1 '
    "and 11.",
    'Fu et al. 2023, "Hungry Hungry Hippos: Towards Language Modeling with State Space Models", '
    "table 2.",
    'Arora et al. 2023, "Zoology: Measuring and Improving Recall in Efficient Language Models": '
    "the task of multi-query associative recall; its results are curves, not figures.",
)
