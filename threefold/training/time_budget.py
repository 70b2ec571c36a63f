"""A time limit: what of it is for training at the recent speed, and when evaluations must end.

The speed of a machine changes during a run.  What comes after the last step (validation and test)
is therefore known in times of a training step, and is reserved at the speed of the newest steps.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from threefold.training import clock
from threefold.training.distributed import ProcessGroup

LEAST_TRAINING = 0.2  # share of a time limit that is for training, whatever else takes time
MOST_JUDGING = 0.3  # share of a time limit that the last validation and the test may take
GRACE = 0.05  # share of a time limit that a test may always take, even if it starts late …
LEAST_GRACE = 2.0  # … but at least these seconds, …
MOST_GRACE = 0.1  # … though not more than this share
RECENT = 0.05  # share of a time limit whose newest steps give the speed …
MOST_RECENT = 30.0  # … but not more than these seconds


@dataclass
class TimeBudget:
    """The time limit of a run that began at `started` on the monotonic clock."""

    limit: float
    started: float
    finishing: float = 0.0  # seconds to write the files after the test
    step: float = 0.0  # seconds of a step, as estimated before the first
    validation: float = 0.0  # in times of a step
    test: float = 0.0  # in times of a step
    before: float = 0.0  # seconds before the first step: of this process, and of pretraining
    earlier: float = 0.0  # seconds of earlier processes, if the run was resumed
    test_started: float | None = None  # on the monotonic clock
    _recent: deque[float] = field(default_factory=deque)

    def begin(self, spent: float, group: ProcessGroup) -> None:
        """The first step is next; `spent`: seconds of the run in earlier processes.

        All ranks must agree on the time, so that they end at the same step.
        """
        elapsed = clock.now() - self.started
        self.earlier = spent + max(self.before - elapsed, 0.0)  # with pretraining, if done before
        self.before, self.step, self.validation, self.test = group.broadcast(
            max(self.before, elapsed), self.step, self.validation, self.test
        )

    def count_step(self, seconds: float) -> None:
        """Note the time of a step."""
        self._recent.append(seconds)
        window = min(RECENT * self.limit, MOST_RECENT)
        while len(self._recent) > 1 and sum(self._recent) - self._recent[0] >= window:
            self._recent.popleft()
        self.step = sum(self._recent) / len(self._recent)

    def count_validation(self, seconds: float) -> None:
        """Note the time of a whole validation; the test is expected to differ as it did."""
        if self.step and self.validation:
            measured = seconds / self.step
            self.test *= measured / self.validation
            self.validation = measured

    @property
    def judging(self) -> float:
        """Seconds that are reserved for the last validation and the test."""
        return min((self.validation + self.test) * self.step, MOST_JUDGING * self.limit)

    @property
    def training(self) -> float:
        """Seconds of the limit that are for training and what is done between its steps."""
        left = self.limit - self.before - self.finishing - self.judging
        return max(left, LEAST_TRAINING * self.limit)

    @property
    def grace(self) -> float:
        """Seconds that the test may take in any case: its score is what a user quotes."""
        return min(max(GRACE * self.limit, LEAST_GRACE), MOST_GRACE * self.limit)

    def begin_test(self) -> None:
        """The test is next: what was done since the last step, such as saving, is not its time."""
        self.test_started = clock.now()

    def test_is_late(self) -> bool:
        """Whether the test must end now."""
        now, end = clock.now(), self.started + self.limit - self.earlier - self.finishing
        return now > end and (self.test_started is None or now > self.test_started + self.grace)

    def validation_is_late(self) -> bool:
        """Whether a validation must end now, so that time for the test is left."""
        together = self.validation + self.test
        test = self.judging * self.test / together if together else 0.0
        end = self.started + self.limit - self.earlier - self.finishing
        return clock.now() > end - test
