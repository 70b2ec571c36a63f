"""α*(t) = 4 − 4Φ(z_{α/4} / √t):  the error that a race may spend by a share t of its budget.

Who looks at a race after every seed and ends it when the verdict is clear is misled more often than
by one look.  So each look has a level of its own, αₖ = α*(tₖ) − α*(tₖ₋₁), and all levels together
are at most α, whenever the race ends.  Early looks, from few seeds, get next to nothing; most of
the error is kept for the end.

The levels add up by Boole's inequality, which holds for t tests of any number of seeds.  The usual
boundaries, which integrate over normal increments, would be up to 4 % narrower, but with two to
five seeds they declare a winner of equal models in 1.2 instead of 1 race in 100.

Lan & DeMets 1983, "Discrete Sequential Boundaries for Clinical Trials", Biometrika 70: a test of
one side spends 2 − 2Φ(z_{α/2}/√t), the chance that Brownian motion has exceeded z_{α/2} by t; here
both sides spend half of α each.  Its boundaries resemble those of O'Brien & Fleming 1979, "A
Multiple Testing Procedure for Clinical Trials", Biometrics 35.  Lan & DeMets 1989, "Group
Sequential Procedures: Calendar Versus Information Time", Statistics in Medicine 8: t may be a share
of the budget.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import NormalDist
from typing import NamedTuple

from threefold.errors import ThreefoldError

FEWEST_LEVEL = 1e-12  # below which a look is too early to end anything


class InterimLook(NamedTuple):
    """A look at the results: after how many seeds, and after which share of the budget."""

    seeds: int
    spent: float  # 0 to 1; the last possible look has 1


def spent_error(alpha: float, share: float) -> float:
    """The two-sided error that may be spent by a share of the budget."""
    if not 0 < alpha < 1 or not 0 <= share <= 1:
        raise ThreefoldError(f"error {alpha} spent by a share of {share}: expected 0 to 1")
    if share in (0, 1):
        return alpha * share
    bound = -NormalDist().inv_cdf(alpha / 4) / math.sqrt(share)
    return 2 * math.erfc(bound / math.sqrt(2))


def levels(looks: Sequence[InterimLook], alpha: float) -> tuple[float, ...]:
    """The two-sided level of the test at each look; 0: the look is too early to end anything."""
    for one, other in pairwise(looks):
        if other.seeds <= one.seeds or other.spent < one.spent:
            raise ThreefoldError(f"looks {one} and {other}: expected more seeds and budget each")
    spent = [0.0, *(spent_error(alpha, look.spent) for look in looks)]
    steps = (after - before for before, after in pairwise(spent))
    return tuple(step if step >= FEWEST_LEVEL else 0.0 for step in steps)
