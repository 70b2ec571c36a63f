"""Selective copying, induction heads and associative recall, for several mixers.

Two blocks of one mixer each, without feed-forward parts, the same for all mixers; all read the same
batches in the same order.  A run ends early when the validation split is solved.
Gu & Dao 2023, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces"; Fu et al. 2023,
"Hungry Hungry Hippos: Towards Language Modeling with State Space Models"; Arora et al. 2023,
"Zoology: Measuring and Improving Recall in Efficient Language Models".
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from threefold.lab.tables.recall_content import RecallContent
from threefold.lab.tables.recall_tasks import (
    ATTENTION,
    LINEAR,
    PRESETS,
    SOLVED,
    TASKS,
    RecallSizes,
    RecallTask,
)
from threefold.lab.tables.table import RemadeTable, Results, TableCell, TableContent
from threefold.lab.tables.training import train_cell
from threefold.training.config import DataSettings, ModelSettings, RunConfig
from threefold.training.settings import TrainingSettings


class RecallTable(RemadeTable):
    """Where fixed filters fail and selective ones do not, and where the delta rule helps."""

    name = "recall"
    title = "Selective copying, induction heads and associative recall"
    presets: ClassVar[Mapping[str, RecallSizes]] = PRESETS

    def cells(self, preset: str) -> list[TableCell]:
        sizes = self.presets[preset]
        return [
            _cell(sizes, task, mixer, seed)
            for seed in range(sizes.seeds)
            for task in TASKS
            for mixer in sizes.mixers
        ]

    def content(self, preset: str, results: Results) -> TableContent:
        sizes = self.presets[preset]
        scores = {
            (task.name, mixer): [results[_key(task, mixer, seed)] for seed in range(sizes.seeds)]
            for task in TASKS
            for mixer in sizes.mixers
        }
        return RecallContent(sizes, scores).content()


def _key(task: RecallTask, mixer: str, seed: int) -> str:
    return f"{task.title.replace(' ', '-')}-{mixer}-{seed}"


def _cell(sizes: RecallSizes, task: RecallTask, mixer: str, seed: int) -> TableCell:
    config = run_config(sizes, task, mixer, seed)
    longer = sizes.longer if task.name == "induction_heads" and mixer != LINEAR else ()
    return TableCell(
        _key(task, mixer, seed),
        f"{mixer} on {task.title}",
        {"run": config.model_dump(mode="json"), "longer": list(longer)},
        partial(train_cell, config, lengths=longer),
    )


def run_config(sizes: RecallSizes, task: RecallTask, mixer: str, seed: int) -> RunConfig:
    """The run of one mixer on one task."""
    data = dict(sizes.options[task.name])
    options: Mapping[str, Any] = {}
    layer: Mapping[str, Any] = {}
    if mixer == LINEAR:
        options, layer = {"positions": "learned"}, {"heads": 2}
    if mixer == "attention":
        options, layer = ATTENTION[task.name]
    if options.get("positions") == "learned":
        options = {**options, "max_length": data["length"]}
    return RunConfig(
        data=DataSettings(
            name=task.name,
            batch_size=sizes.batch_size,
            eval_examples=sizes.examples,
            seed=seed,
            options=data,
        ),
        model=ModelSettings(
            mixers=((mixer, dict(layer)),),
            width=sizes.width,
            depth=2,
            channel="none",
            options=dict(options),
            seed=seed,
        ),
        training=TrainingSettings(
            steps=sizes.steps_of(task.name, mixer),
            learning_rate=sizes.learning_rate,
            weight_decay=0.01,
            eval_every=sizes.eval_every,
            target_score=SOLVED,
            seed=seed,
        ),
        threads=1,
    )
