"""`threefold evaluate`: the metrics of a run or of a saved model, beside their baselines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from threefold.cli import options, output
from threefold.errors import ThreefoldError

if TYPE_CHECKING:
    from threefold.training.evaluations import Evaluation

PAGE = "evaluation.html"
ModelFolder = Annotated[
    Path, typer.Argument(metavar="MODEL", help="Folder of a run or of a saved model.")
]
Data = Annotated[
    str | None,
    typer.Argument(metavar="DATA", help="Data to evaluate on; default: the data of the run."),
]
Split = Annotated[
    str | None,
    typer.Option(
        metavar="train|valid|test", help="Default: all of new DATA, or the run's test split."
    ),
]
Unknown = Annotated[
    str,
    typer.Option(metavar="refuse|skip", help="Examples whose label the model does not know."),
]
Stride = Annotated[
    int, typer.Option(min=1, help="Forecasters: rows between the origins of two forecasts.")
]
Season = Annotated[
    int | None, typer.Option(min=1, help="Forecasters: rows of a season; default: by time stamps.")
]
ByPosition = Annotated[
    bool,
    typer.Option(
        "--by-position",
        help="Texts and series: also the errors along one stream of up to 1,000,000 elements, "
        "with the state carried all the way.",
    ),
]
Page = Annotated[
    bool, typer.Option("--page", help=f"Write a page with figures to RUN/{PAGE} or to --output.")
]
Output = Annotated[
    Path | None, typer.Option("--output", help="A new file for the page, instead of RUN's.")
]
SetData = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change settings of the data, e.g. data.length=1024."
    ),
]


def evaluate(
    model: ModelFolder,
    data: Data = None,
    split: Split = None,
    unknown: Unknown = "refuse",
    stride: Stride = 1,
    season: Season = None,
    by_position: ByPosition = False,
    page: Page = False,
    weights: options.Weights = None,
    output_file: Output = None,
    overrides: SetData = None,
    plugins: options.Plugins = None,
    as_json: options.AsJson = False,
) -> None:
    """Print the metrics of a model on new data or on the test split of its own.

    New data are read with the model's own columns, labels and scaling, all of them unless --split
    is given.
    """
    from threefold.kernels.system_memory import keep_memory
    from threefold.training.evaluations import evaluate as measure
    from threefold.training.evaluations.narrow import evaluate_narrow

    path = _page_path(model, page, output_file)
    keep_memory()
    asked: dict[str, Any] = {"unknown": unknown, "stride": stride, "season": season}
    asked |= {"by_position": by_position, "settings": overrides or ()}
    with output.progress_bar("evaluating") as show:
        if weights is None:
            evaluation = measure(model, data, split, on_progress=show, **asked)
        else:
            evaluation = evaluate_narrow(model, weights, data, split, on_progress=show, **asked)
    if path is not None:
        evaluation.page(path)
    if as_json:
        output.say_json(evaluation)
        return
    _show(evaluation)
    if path is not None:
        output.say(f"page: {path}")


def _page_path(model: Path, wanted: bool, path: Path | None) -> Path | None:
    """Where the page is written; only a page of an earlier evaluation is replaced."""
    from threefold.cli.predict import check_new_file

    if path is not None:
        check_new_file(path)
        return path
    if not wanted:
        return None
    if model.is_dir() and not (model / "config.toml").is_file():
        raise ThreefoldError(
            f"{model}: not the folder of a run, so a page cannot be written there; name a file: "
            "--output FILE.html"
        )
    return model / PAGE


def _show(evaluation: Evaluation) -> None:
    from threefold.training.evaluations.tables import facts, tables

    for note in evaluation["notes"]:
        output.note(note)
    output.say_facts(facts(evaluation))
    for table in tables(evaluation):
        output.say()
        output.say(output.paint(table.title, "head"))
        output.say_table(table.header, table.rows)
        if table.note:
            output.say(table.note)
