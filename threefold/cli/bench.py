"""`threefold bench`: what mixers cost at growing lengths, on this machine."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

import typer

from threefold.cli import output

MIXERS = "attention,lstm,s4d,mamba,gla,gated_delta_net"


def bench(
    mixers: Annotated[str, typer.Argument(help="Names separated by commas.")] = MIXERS,
    lengths: Annotated[str, typer.Option(help="Such as 256,1k,16k.")] = "256,1k,4k,16k",
    forms: Annotated[str, typer.Option(help="Among auto, step, chunk, parallel.")] = "auto",
    width: Annotated[int, typer.Option(min=1, help="Of the layer.")] = 128,
    batch: Annotated[int, typer.Option(min=1, help="Rows.")] = 1,
    training: Annotated[bool, typer.Option("--training", help="Backward, too.")] = False,
    table: Annotated[
        Literal["cost"] | None, typer.Option(help="cost: exponents beside published orders.")
    ] = None,
    folder: Annotated[Path | None, typer.Option(help="Where page and figures are written.")] = None,
    json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Measure time and memory of mixers against length, and say where they cross."""
    from threefold.kernels.system_memory import keep_memory
    from threefold.lab.bench import bench as lab

    keep_memory()
    if table == "cost":
        chosen = lab.lengths_of(lengths) if lengths != "256,1k,4k,16k" else None
        _cost_table(chosen, json)
        return
    shapes = lab.Shapes(
        lab.names_of(mixers),
        lab.lengths_of(lengths),
        tuple(part.strip() for part in forms.split(",") if part.strip()) or ("auto",),
        width,
        batch,
        training,
    )
    found = lab.measure(shapes, output.whisper)
    if json:
        output.say_json(found.to_dict())
    else:
        header, rows = found.table()
        output.say_table(header, rows, fold=header[-2:])
        for crossing in found.crossings():
            output.say(
                f"{crossing.name} is faster than {crossing.other} from {crossing.length:,.0f} on"
            )
        for name, reason in found.refused:
            output.say(f"{name}: {reason}")
    if folder is not None:
        path = found.save(folder)
        if not json:
            output.say(f"figures: {path}")


def _cost_table(lengths: tuple[int, ...] | None, json: bool) -> None:
    from dataclasses import asdict

    from threefold.lab.bench.cost_table import HEADER, LENGTHS, ROWS, Filled, fill
    from threefold.lab.bench.measuring import Growth

    chosen = lengths or LENGTHS
    found = fill(lengths=chosen, progress=output.whisper)
    if json:
        output.say_json([asdict(row) for row in found])
        return
    # A line as soon as it is measured, in columns that are wide enough for all.
    points = tuple((length, 0.0) for length in chosen)
    widest = [Filled(row, points, Growth(-0.99, 9.99)).cells() for row in ROWS]
    widths = [max(map(len, cells)) for cells in zip(HEADER, *widest, strict=True)]
    for cells in chain([HEADER], (row.cells() for row in found)):
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        output.say(output.GAP.join(padded).rstrip())
