"""`threefold evaluate`: the loss and metric of a run or of a saved model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from threefold.cli import output
from threefold.errors import ThreefoldError


def evaluate(
    model: Annotated[Path, typer.Argument(help="The folder of a run, or of a saved model.")],
    data: Annotated[
        str | None,
        typer.Argument(metavar="DATA_OR_TASK", help="Other data than the run's."),
    ] = None,
    split: Annotated[str, typer.Option(help="train, valid or test.")] = "test",
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Keys of data, e.g. data.length=1024."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Judge a model on a split of its own data, or of others."""
    from threefold.kernels.system_memory import keep_memory
    from threefold.models.saving import load
    from threefold.training.config import RunConfig
    from threefold.training.experiment import CONFIG, MODEL, judge, read_run
    from threefold.training.training_data import open_data

    is_run = (model / CONFIG).is_file()
    if not is_run and data is None:
        raise ThreefoldError(
            f"{model}: a model alone does not say what to judge it on; give DATA_OR_TASK as well"
        )
    values = read_run(model).model_dump(mode="json") if is_run else {"data": {}}
    if data is not None:
        kept = values["data"] if is_run else {}
        values["data"] = {key: kept[key] for key in ("batch_size", "tokenizer") if key in kept}
        values["data"]["name"] = data
    whole = RunConfig.read(values, changes or ())
    found, loaded = open_data(whole.data), load(model / MODEL if is_run else model)
    wanted, has = found.spec(whole.model), loaded.spec
    if (wanted.kind, wanted.vocabulary) != (has.kind, has.vocabulary):
        raise ThreefoldError(
            f"{model}: a {has.kind} of {has.vocabulary} tokens; {whole.data.name} needs a "
            f"{wanted.kind} of {wanted.vocabulary}"
        )
    keep_memory()
    carry = whole.training.carry_state and found.task.corpus is not None
    task, scores = found.task, judge(found.limited(None), loaded, split, carry)
    if as_json:
        output.say_json(
            {
                "model": str(model),
                "data": whole.data.name,
                "split": split,
                "loss": scores.loss,
                "metric": found.metric,
                "score": scores.metric,
                "chance": task.chance,
            }
        )
        return
    output.say_facts(
        [
            ("data", f"{task.title}, {split}"),
            ("loss", f"{scores.loss:.4f}"),
            (found.metric, f"{scores.metric:.4f} (chance {task.chance:.4g})"),
        ]
    )
