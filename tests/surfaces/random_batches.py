"""Random batches of live rows: arrivals, cancellations, any mixer, sampling and stops.

make torture-batches            a thousand rows, their bits alone and in company
python -m tests.surfaces.random_batches --count 1000
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass, field
from typing import Any

from tests.surfaces.random_requests import CAUSAL, random_model, random_settings
from threefold.models.language import LanguageModel
from threefold.runtime.batch import LiveBatch
from threefold.runtime.sampling import Sampling

FILTERS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


@dataclass
class Request:
    """One row: when it comes, what it asks for, and after how many tokens it is cancelled."""

    arrival: int
    prompt: list[int]
    settings: dict[str, Any]
    cancelled_after: int | None = None
    tokens: list[int] = field(default_factory=list)
    scores: list[float | None] = field(default_factory=list)
    finish_reason: str = ""

    def admit(self, batch: LiveBatch) -> int:
        settings = {**self.settings}
        sampling = Sampling(**{name: settings.pop(name) for name in FILTERS if name in settings})
        return batch.admit(self.prompt, sampling=sampling, **settings)

    @property
    def result(self) -> tuple[list[int], list[float | None], str]:
        return self.tokens, self.scores, self.finish_reason


def random_rows(chance: random.Random, model: LanguageModel, count: int) -> list[Request]:
    size = model.spec.vocabulary
    rows = []
    for _ in range(count):
        settings = random_settings(chance, size)
        settings["log_probabilities"] = chance.random() < 0.5
        prompt = [chance.randrange(size) for _ in range(chance.choice((1, 2, 5, 17, 40)))]
        cancelled = chance.randint(1, 6) if chance.random() < 0.2 else None
        rows.append(Request(chance.randint(0, 25), prompt, settings, cancelled))
    return rows


def serve(batch: LiveBatch, rows: list[Request], chance: random.Random) -> None:
    """Run the rows to their ends, each admitted before the step of its arrival."""
    known: dict[int, Request] = {}
    clock = 0
    while len(known) < len(rows) or len(batch):
        for row in rows:
            if row.arrival == clock:
                known[row.admit(batch)] = row
        for token in batch.step(chance.choice((1, 1, 3))):
            row = known[token.row]
            row.tokens.append(token.token)
            row.scores.append(token.log_probability)
            row.finish_reason = token.finish_reason
        for number, row in known.items():
            ready = row.cancelled_after is not None and len(row.tokens) >= row.cancelled_after
            if ready and not row.finish_reason:
                batch.cancel(number)
                row.finish_reason = "cancelled"
        clock += 1


def alone(model: LanguageModel, row: Request, **settings: Any) -> Request:
    """The same request in a batch of its own."""
    copy = Request(0, row.prompt, row.settings, row.cancelled_after)
    serve(LiveBatch(model, **settings), [copy], random.Random(0))
    return copy


def compare(seed: int, rows: int = 10) -> list[str]:
    """Serve rows together and alone; returns those that have other bits."""
    chance = random.Random(seed)
    model = random_model(chance, CAUSAL[seed % len(CAUSAL)]).float()
    settings = {
        "deterministic": True,
        "max_rows": chance.choice((3, 8, 20)),
        "prompt_piece": chance.choice((4, 16)),
    }
    requests = random_rows(chance, model, rows)
    serve(LiveBatch(model, **settings), requests, chance)
    wrong = []
    for number, row in enumerate(requests):
        single = alone(model, row, **settings)
        end = len(single.tokens) if row.cancelled_after is None else row.cancelled_after
        found = row.tokens[:end], row.scores[:end]
        if found != (single.tokens[:end], single.scores[:end]):
            wrong.append(f"batch {seed}, row {number} ({model.spec.mixers}, {row.settings})")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="rows, ten in each batch")
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    wrong: list[str] = []
    for seed in range(given.first, given.first + -(-given.count // 10)):
        found = compare(seed)
        wrong += found
        for line in found:
            print(line, flush=True)
    print(f"{given.count - len(wrong)} of {given.count} rows have the same bits alone")
    if wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
