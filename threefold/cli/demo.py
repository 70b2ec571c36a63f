"""`threefold demo`: train a few small language models on real text and compare them."""

from __future__ import annotations

from typing import Annotated

import typer

from threefold.errors import ThreefoldError, nearest


def demo(
    seconds: Annotated[float, typer.Option(min=1, help="Training time in all.")] = 120,
    mixers: Annotated[
        str | None, typer.Option(help="Names separated by commas; see `threefold models`.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same start.")] = 0,
) -> None:
    """Train small language models on real text, then print a table and a sample of each."""
    chosen = None if mixers is None else known_names(mixers)
    from threefold.lab.demo import run

    if chosen is None:
        run(seconds=seconds, seed=seed)
    else:
        run(seconds=seconds, mixers=chosen, seed=seed)


def known_names(listed: str) -> tuple[str, ...]:
    """The names in a comma-separated list, each checked before anything is trained."""
    from threefold.layers.table import MIXERS

    names = tuple(name.strip() for name in listed.split(",") if name.strip())
    if not names:
        raise ThreefoldError(f"--mixers {listed!r} names no mixer; known: {', '.join(MIXERS)}")
    for name in names:
        if name not in MIXERS:
            raise ThreefoldError(f"unknown mixer {name!r}; {nearest(name, MIXERS)}")
    return names
