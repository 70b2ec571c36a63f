"""`threefold merge`: a model with its low-rank adapters added to its matrices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from threefold.cli import options, output
from threefold.errors import ThreefoldError

Out = Annotated[Path, typer.Argument(metavar="OUT", help="Folder of the merged model.")]


def merge(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A saved model, or a run.")],
    out: Out,
    plugins: options.Plugins = None,
) -> None:
    """Merge the low-rank adapters of a fine-tuned model into its weights.

    The merged model gives the same answers, is smaller, and needs fewer operations per element.
    """
    from threefold.models.adapters import adapter_rank
    from threefold.models.saving import load

    loaded = load(model)
    rank = adapter_rank(loaded)
    if not rank:
        raise ThreefoldError(f"{model}: has no adapters; there is nothing to merge")
    before = loaded.parameter_count
    loaded.merge_adapters().save(out)
    output.say_facts(
        [
            ("merged", f"adapters of rank {rank}"),
            ("parameters", f"{before:,} → {loaded.parameter_count:,}"),
            ("model", str(out)),
        ]
    )
