"""The rounds of a race: one seed of every model that is still in it, then a look at the results.

    --seeds 3      three rounds; a model that is clearly behind the leader gets no further seed,
                   except for the runner-up
    --seeds auto   until one model is clearly best or the budget is spent; what the models that were
                   stopped leave over is for more seeds of the others

Models are stopped between runs, never within one: learning curves cross, so half a curve shows
nothing about its end, while a difference between finished runs can be tested.  "Clearly" is the
test of the verdict itself, at the level of this look (`sequential.py`), so a model that was stopped
is worse with the confidence of the race.  Everything follows from the scores and the recorded times
of finished runs: a race that was interrupted, or is spread over processes, takes the same
decisions.  If the machine has become slower, --seeds auto affords fewer rounds; a number of steps
never changes, because runs of different lengths cannot be compared.

Maron & Moore 1994, "Hoeffding Races"; Birattari et al. 2002, "A Racing Algorithm for Configuring
Metaheuristics".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from threefold.lab.race.planning import RacePlan
from threefold.lab.race.request import AUTO
from threefold.lab.race.sequential import InterimLook
from threefold.lab.race.significance import Verdict, verdict

Scores = Mapping[tuple[str, int], float]  # by name and seed


@dataclass(frozen=True)
class Standing:
    """Where a race is: the runs that are needed now, and all looks so far."""

    missing: tuple[tuple[str, int], ...]  # (name, seed) of runs; empty: the race is over
    looks: tuple[InterimLook, ...]
    stopped: tuple[str, ...]  # models without further seeds, in this order
    clear: bool = False  # whether the race ended because the verdict was clear


def slowdown(plan: RacePlan, taken: Scores) -> float:
    """Training time of finished runs against the time that was planned for all of them; 0 if none.

    What was planned also has the evaluations, so more than 1 is a machine that has become slower.
    """
    if not taken or plan.request.duration.seconds is None:
        return 0.0
    return sum(taken.values()) / sum(plan.planned(name).seconds for name, _ in taken)


@dataclass(frozen=True)
class Rounds:
    """Decides after each round which models get one more seed."""

    plan: RacePlan
    lower: bool
    resolution: float = 0.0
    taken: Scores = field(default_factory=dict)  # seconds of finished runs, by name and seed

    @property
    def adaptive(self) -> bool:
        """Whether results decide about further runs; otherwise all runs are known at once."""
        request = self.plan.request
        several = len(self.plan.contenders) > 2 and request.early_stop
        return request.seeds == AUTO or (several and request.rounds > 2)

    def standing(self, scores: Scores) -> Standing:
        """What the finished runs say."""
        names = [c.name for c in self.plan.contenders]
        most = self.plan.request.most_seeds
        if not self.adaptive:
            runs = [(name, seed) for seed in range(most) for name in names]
            missing = tuple(run for run in runs if run not in scores)
            return Standing(missing, (InterimLook(most, 1.0),), ())
        active = names
        looks: list[InterimLook] = []
        stopped: list[str] = []
        for seeds in range(1, most + 1):
            missing = tuple((n, seeds - 1) for n in active if (n, seeds - 1) not in scores)
            if missing:
                return Standing(missing, tuple(looks), tuple(stopped))
            last = seeds == most or not self._affordable(scores, seeds, active)
            if seeds > 1 or last:
                looks.append(InterimLook(seeds, 1.0 if last else self._spent(scores, seeds)))
                found = self._verdict(scores, seeds, looks)
                if last or (found.kind == "best" and self.plan.request.seeds == AUTO):
                    return Standing((), tuple(looks), tuple(stopped), found.kind == "best")
                behind = self._behind(found, active)
                stopped += behind
                active = [name for name in active if name not in behind]
                if len(active) < 2:  # nothing is left to compare with
                    return Standing((), tuple(looks), tuple(stopped))
        raise AssertionError("the last round returns")

    def _behind(self, found: Verdict, active: list[str]) -> list[str]:
        """Models that get no further seed."""
        if not self.plan.request.early_stop:
            return []
        kept = {found.leader} | (set() if self.plan.request.seeds == AUTO else {found.second})
        return [n for n in active if n not in kept and found.margins[n].positive]

    def _verdict(self, scores: Scores, seeds: int, looks: list[InterimLook]) -> Verdict:
        by_name = {
            c.name: {s: scores[c.name, s] for s in range(seeds) if (c.name, s) in scores}
            for c in self.plan.contenders
        }
        return verdict(by_name, lower=self.lower, resolution=self.resolution, looks=looks)

    def _cost(self, runs: set[tuple[str, int]]) -> float:
        """Expected seconds of runs."""
        seconds = {c.name: c.seconds for c in self.plan.contenders}
        return sum(seconds[name] for name, _ in runs)

    @property
    def _budget(self) -> float:
        return self.plan.request.rounds * sum(c.seconds for c in self.plan.contenders)

    def _spent(self, scores: Scores, seeds: int) -> float:
        """The share of the budget that is used after this many rounds."""
        if self.plan.request.seeds != AUTO:
            return seeds / self.plan.request.rounds
        return min(1.0, self._cost({run for run in scores if run[1] < seeds}) / self._budget)

    def _affordable(self, scores: Scores, seeds: int, active: list[str]) -> bool:
        """Whether the budget pays for one more round of the models that are active now."""
        if self.plan.request.seeds != AUTO:
            return True
        done = {run for run in scores if run[1] < seeds}
        more = self._cost(done) + self._cost({(n, seeds) for n in active})
        return more * self._slowdown(done) <= self._budget * (1 + 1e-9)

    def _slowdown(self, done: set[tuple[str, int]]) -> float:
        """How many times as long as planned these runs took, if training alone took longer."""
        known = done & set(self.taken)
        return max(1.0, slowdown(self.plan, {run: self.taken[run] for run in known}))
