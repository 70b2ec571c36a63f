"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

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
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Ranks = Annotated[
    int, typer.Option(min=1, help="Number of processes on this machine that share the work.")
]
TensorBoard = Annotated[bool, typer.Option(help="Also write logs for TensorBoard.")]
