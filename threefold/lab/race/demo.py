"""The demonstration: five sequence models race on the Python language reference.

The text is there without a download; the race and its page are those of `threefold compare`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from threefold.data.python_manual import python_reference
from threefold.data.tokenizers import ByteTokenizer
from threefold.lab.race.planning import RACERS, RaceRequest
from threefold.lab.race.race import RaceFolder, run
from threefold.lab.report.report import Report
from threefold.models.model import Predictor
from threefold.models.saving import load
from threefold.runtime.generation import generate

PROMPT = "The "
OUTSIDE = 0.3  # of the time: evaluations beyond their part, costs, the page


def race(
    seconds: float,
    folder: Path,
    mixers: Sequence[str] = RACERS,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[Report, str]:
    """The report, and a text that the best model writes."""
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / "python-reference.txt"
    if not text.is_file():
        text.write_text(python_reference(), encoding="utf-8")
    request = RaceRequest(
        str(text),
        tuple(mixers),
        time=f"{round((1 - OUTSIDE) * seconds, 1):g}s",
        learning_rate=5e-3,
        batch_size=8,
        overrides=("data.length=128",),
    )
    report = run(request, RaceFolder(folder), say)
    return report, sample(folder / "legs" / f"{report.ranked[0].name}-0" / "model")


def sample(folder: Path, length: int = 240) -> str:
    """What a saved model goes on with from the prompt."""
    tokenizer = ByteTokenizer()
    prompt = tokenizer.encode(PROMPT).tolist()
    model = load(folder)
    assert isinstance(model, Predictor)
    made = generate(model, prompt, max_tokens=length, temperature=0.6, seed=0)
    return PROMPT + _printable(tokenizer.decode(made.rows()[0]))


def _printable(text: str) -> str:
    """The text without control characters: a young model writes any, and some act on a terminal."""
    return "".join(c if c.isprintable() or c == "\n" else "·" for c in text)
