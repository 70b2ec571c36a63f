"""The demonstration: small language models, one for each of a few mixers, learn the same text.

Bytes of the Python language reference, the same time for each; then a table and a sample of each.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from threefold.data import Batch, ByteTokenizer, Stream, python_reference, split
from threefold.models.language import LanguageModel
from threefold.models.spec import Spec
from threefold.runtime.generation import generate
from threefold.training import Result, Settings, train

MIXERS = ("gla", "mamba2", "gated_delta_net", "rwkv7", "mamba")
PROMPT = "The "
TRAINING = 0.85  # of the time; the rest is for validation and samples


@dataclass(frozen=True)
class Row:
    """What one model reached."""

    mixer: str
    result: Result
    parameters: int
    state_size: int  # bytes
    decode_rate: float  # tokens a second
    sample: str

    def cells(self) -> list[str]:
        """The row of the table."""
        loss = self.result.scores.loss
        return [
            self.mixer,
            f"{loss:.3f}",
            f"{loss / math.log(2):.3f}",
            f"{self.parameters:,}",
            f"{self.result.rate:,.0f}",
            f"{self.decode_rate:,.0f}",
            f"{self.state_size:,}",
        ]


def run(
    seconds: float = 120,
    mixers: Sequence[str] = MIXERS,
    seed: int = 0,
    console: Console | None = None,
) -> list[Row]:
    """Train each mixer for its part of `seconds`, then print the table and the samples."""
    console = console or Console()
    training, validation = _data(seed)
    console.print(
        f"The Python language reference, {len(training.tokens):,} bytes; "
        f"{len(mixers)} models, {TRAINING * seconds / len(mixers):.0f} s of training each.",
        highlight=False,
    )
    rows: list[Row] = []
    for name in mixers:
        settings = Settings(
            seconds=TRAINING * seconds / len(mixers), learning_rate=4e-3, carry=True, seed=seed
        )
        rows.append(_train(name, training, validation, settings, console))
        if rows[-1].result.stopped == "interrupted":
            break
    _print(rows, console)
    return rows


def language_model(mixer: str, seed: int = 0) -> LanguageModel:
    """The model of the demonstration, about 0.3 million parameters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LanguageModel(Spec("language", width=96, depth=2, mixers=(mixer,)))
    return model


def _data(seed: int) -> tuple[Stream, list[Batch]]:
    """Lanes of the training text, and the validation text in pieces, once through."""
    tokenizer = ByteTokenizer()
    train_text, validation_text = split(python_reference())
    validation = Stream(tokenizer.encode(validation_text), batch=8, length=256)
    pieces = [validation(step) for step in range(validation.pieces)]
    return Stream(tokenizer.encode(train_text), batch=8, length=128, seed=seed), pieces


def _train(
    name: str, training: Stream, validation: list[Batch], settings: Settings, console: Console
) -> Row:
    model = language_model(name, settings.seed)
    result = train(model, training, settings, validation=validation, console=console, title=name)
    sample, rate = _sample(model, settings.seed)
    return Row(
        mixer=name,
        result=result,
        parameters=model.parameter_count,
        state_size=model.state_size(training.length),
        decode_rate=rate,
        sample=sample,
    )


def _sample(model: LanguageModel, seed: int, length: int = 240) -> tuple[str, float]:
    """A text that the model goes on with from the prompt, and how many tokens a second it wrote."""
    tokenizer = ByteTokenizer()
    start = time.perf_counter()
    made = generate(
        model,
        tokenizer.encode(PROMPT).tolist(),
        max_tokens=length,
        temperature=0.6,
        seed=seed,
    )
    rate = length / (time.perf_counter() - start)
    return PROMPT + _printable(tokenizer.decode(made.rows()[0])), rate


def _printable(text: str) -> str:
    """The text without control characters: a young model writes any, and some act on a terminal."""
    return "".join(c if c.isprintable() or c == "\n" else "·" for c in text)


def _print(rows: Sequence[Row], console: Console) -> None:
    table = Table(
        title="Validation after the same time of training",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("mixer", no_wrap=True)
    for title in (
        "loss (nats)",
        "bits per byte",
        "parameters",
        "training tokens/s",
        "decode tokens/s",
        "state bytes",
    ):
        table.add_column(title, justify="right", min_width=max(map(len, title.split())))
    for row in sorted(rows, key=lambda row: row.result.scores.loss):
        table.add_row(*row.cells())
    console.print(table)
    for row in rows:
        console.rule(row.mixer)
        console.print(row.sample, markup=False, highlight=False)
