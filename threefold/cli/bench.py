"""`threefold bench`: time and memory of mixers at growing lengths, on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from threefold.cli import output
from threefold.cli.options import AsJson, Plugins

if TYPE_CHECKING:
    from threefold.lab.bench.bench import Bench

MIXERS = "attention,lstm,s4d,mamba,gla,gated_delta_net"


Mixers = Annotated[
    str | None,
    typer.Argument(help="Mixers, separated by commas.", show_default=MIXERS),
]
Lengths = Annotated[str, typer.Option(help="Sequence lengths, e.g. 256,1k,16k.")]
Forms = Annotated[str, typer.Option(help="Any of auto, step, chunk, parallel.")]
Width = Annotated[int, typer.Option(min=1, help="Width of the layer.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Examples per batch.")]
Training = Annotated[bool, typer.Option("--training", help="Also measure the backward pass.")]
Folder = Annotated[Path | None, typer.Option(help="Folder for a page with figures.")]


def bench(
    mixers: Mixers = None,
    lengths: Lengths = "256,1k,4k,16k",
    forms: Forms = "auto",
    width: Width = 128,
    batch_size: BatchSize = 1,
    training: Training = False,
    folder: Folder = None,
    json: AsJson = False,
    plugins: Plugins = None,
) -> None:
    """Measure time and memory of mixers at growing lengths, and where their lines cross."""
    from threefold.kernels.system_memory import keep_memory
    from threefold.lab.bench import bench as lab

    keep_memory()
    shapes = lab.Shapes(
        lab.parse_names(MIXERS if mixers is None else mixers),
        lab.parse_lengths(lengths),
        tuple(part.strip() for part in forms.split(",") if part.strip()) or ("auto",),
        width,
        batch_size,
        training,
    )
    result = lab.measure(shapes, output.whisper)
    if json:
        output.say_json(result.to_dict())
    else:
        _say_result(result)
    if folder is not None:
        path = result.save(folder)
        if not json:
            output.say(f"figures: {path}")


def _say_result(result: Bench) -> None:
    header, rows = result.table()
    output.say_table(header, rows, fold=header[-2:])
    for crossing in result.crossings():
        start = f"from length {crossing.length:,.0f} on"
        output.say(f"{crossing.name} is faster than {crossing.other} {start}")
    for name, reason in result.refused:
        output.say(f"{name}: {reason}")
