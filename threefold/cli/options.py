"""Arguments and options that several commands share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

Data = Annotated[
    str | None,
    typer.Argument(
        metavar="DATA",
        help="A task of `threefold tasks`, or the path of your own file or folder.",
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change any setting, e.g. data.length=512 or model.mixers.mamba.state_size=64; "
        "`threefold config` lists them. May be repeated.",
    ),
]
Kind = Annotated[
    str | None,
    typer.Option(
        help="What to train on your own data: language, masked, xlnet, classifier, hierarchical, "
        "regressor, tagger, forecaster, seq2seq, captioner; images: vision, convolutional or swin; "
        "default: from the data."
    ),
]
Target = Annotated[str | None, typer.Option(help="Tables: the column to predict.")]
Features = Annotated[
    str | None, typer.Option(metavar="A,B", help="Tables: the columns to read; default: all.")
]
TimeColumn = Annotated[str | None, typer.Option(help="Tables: the column of the time stamps.")]
GroupColumn = Annotated[
    str | None, typer.Option(help="Tables: rows with one value of this column are one sequence.")
]
SeriesColumn = Annotated[
    str | None, typer.Option(help="Tables: rows with one value of this column are one time series.")
]
Horizon = Annotated[int | None, typer.Option(help="Time series: number of time steps to forecast.")]
KnownFuture = Annotated[
    str | None,
    typer.Option(help="Time series: features that are known for the rows to forecast, e.g. a,b."),
]


Weights = Annotated[
    str | None,
    typer.Option(
        metavar="TYPE",
        help="Store large weights in int8 or bfloat16: less memory, faster steps, a little less "
        "exact. `threefold evaluate MODEL --weights int8` says what it costs.",
    ),
]


def _load_plugins(names: list[str] | None) -> list[str] | None:
    from threefold.plugins import load_plugin

    for name in names or ():
        load_plugin(name)
    return names


Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="MODULE",
        callback=_load_plugins,
        help="A module, or a .py file, that registers mixers or tasks of your own. "
        "May be repeated.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Ranks = Annotated[
    int, typer.Option(min=1, help="Number of processes on this machine that share the work.")
]
TensorBoard = Annotated[bool, typer.Option(help="Also write logs for TensorBoard.")]

DATA_OPTIONS = (
    *("kind", "target", "features", "time_column", "group_column", "series_column", "horizon"),
    "known_future",
)


def data_settings(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the data among the arguments of a command, by their full names."""
    return {f"data.{name}": arguments[name] for name in DATA_OPTIONS}
