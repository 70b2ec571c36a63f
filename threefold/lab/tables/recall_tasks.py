"""The columns of the table of recall: tasks with their published figures, and the presets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from threefold.tasks.published import PUBLISHED

MIXERS = (
    "attention",
    "lstm",
    "s4d",
    "h3",
    "hyena",
    "linear_attention",
    "gla",
    "delta_net",
    "gated_delta_net",
    "mamba",
)
# Without a sense of order of its own it gets learned positions, and cannot read longer rows.
LINEAR = "linear_attention"
# Options of attention's model and layer, by task.  At first it averages what it reads, and large
# embeddings leave room for the mean (smaller ones are drowned by it, larger ones hide it).
ATTENTION: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "selective_copying-mini": ({"scale_embedding": True}, {"heads": 2}),
    "induction_heads": ({"embedding_std": 0.3}, {"heads": 2}),
    "recall": (
        {"embedding_std": 0.3, "positions": "learned"},
        {"heads": 2, "positions": "none"},
    ),
}
SOLVED = 0.99


@dataclass(frozen=True)
class RecallTask:
    """One column of the table."""

    name: str
    title: str
    shows: str
    published: Mapping[str, float]  # by mixer
    published_for: str


TASKS = (
    RecallTask(
        "selective_copying-mini",
        "selective copying",
        "keep the symbols and drop the noise between them",
        {
            "s4d": PUBLISHED["selective_copying"]["S4"],
            "h3": PUBLISHED["selective_copying"]["H3"],
            "hyena": PUBLISHED["selective_copying"]["Hyena"],
            "mamba": PUBLISHED["selective_copying"]["Mamba"],
        },
        "16 symbols in 4,096 elements, 2 layers (Gu & Dao 2023, table 1; S4D's row is S4)",
    ),
    RecallTask(
        "induction_heads",
        "induction heads",
        "repeat what followed the same token before",
        {"attention": 1.0, "s4d": 0.356, "h3": 1.0, "mamba": 1.0},
        "Mamba at 256 to 1,048,576 elements (Gu & Dao 2023, table 11); the others by Fu et al. "
        "2023, table 2, at 30 elements",
    ),
    RecallTask(
        "recall",
        "associative recall",
        "answer each key with the value that it had in this row",
        {"attention": 1.0, "s4d": 0.86, "h3": 0.998},
        "one query in 20 elements, chance 25 % (Fu et al. 2023, table 2)",
    ),
)


@dataclass(frozen=True)
class RecallSizes:
    """Sizes of a preset; `options` of the tasks by their names."""

    options: Mapping[str, Mapping[str, int]]
    steps: Mapping[str, int]
    # Attention is at chance for longer than the others are trained; the page says that it has more.
    attention_steps: Mapping[str, int] = field(default_factory=dict)
    mixers: tuple[str, ...] = MIXERS
    seeds: int = 1
    width: int = 64
    batch_size: int = 32
    examples: int = 256  # of a validation
    eval_every: int = 100
    longer: tuple[int, ...] = ()  # lengths at which induction heads are tested as well
    learning_rate: float = 4e-3

    def steps_of(self, task: str, mixer: str) -> int:
        """The most steps of a training."""
        longer = self.attention_steps if mixer == "attention" else {}
        return longer.get(task, self.steps[task])


PRESETS = {
    "seconds": RecallSizes(
        {
            "selective_copying-mini": {"length": 16, "symbols": 2},
            "induction_heads": {"length": 12},
            "recall": {"pairs": 2, "length": 16, "vocabulary": 16},
        },
        dict.fromkeys(("selective_copying-mini", "induction_heads", "recall"), 4),
        mixers=("attention", "mamba"),
        width=16,
        batch_size=4,
        examples=8,
        eval_every=2,
        longer=(24,),
    ),
    "minutes": RecallSizes(
        {
            "selective_copying-mini": {"length": 64, "symbols": 8},
            "induction_heads": {"length": 64},
            "recall": {"pairs": 8, "length": 64},
        },
        {"selective_copying-mini": 1500, "induction_heads": 600, "recall": 800},
        {"induction_heads": 3000, "recall": 4000},
        longer=(256, 1024),
    ),
    "hours": RecallSizes(
        {
            "selective_copying-mini": {"length": 256, "symbols": 16},
            "induction_heads": {"length": 256},
            "recall": {"pairs": 16, "length": 128},
        },
        {"selective_copying-mini": 6000, "induction_heads": 3000, "recall": 4000},
        seeds=3,
        longer=(1024, 4096),
    ),
}
