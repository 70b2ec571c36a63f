"""Every mixer with an oracle against it: the published layer, written out step by step."""

from __future__ import annotations

from typing import Any

import pytest

import threefold
from tests.layers import (
    attention_oracles,
    cell_oracles,
    filter_oracles,
    linear_oracles,
    pixel_oracles,
)
from tests.layers.published import Oracle, assert_parameters_matter, assert_published
from threefold import ThreefoldError

CASES = (
    *cell_oracles.CASES,
    *attention_oracles.CASES,
    *filter_oracles.CASES,
    *linear_oracles.CASES,
    *pixel_oracles.CASES,
)
every_case = pytest.mark.parametrize(
    ("name", "oracle", "options"),
    CASES,
    ids=[" ".join([name, *map(str, options)]) for name, _, options in CASES],
)


@every_case
def test_published_layer(name: str, oracle: Oracle, options: dict[str, Any]) -> None:
    assert_published(name, oracle, **options)


@every_case
def test_comparison_notices_every_parameter(
    name: str, oracle: Oracle, options: dict[str, Any]
) -> None:
    assert_parameters_matter(name, oracle, **options)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mamba2", {"groups": 3, "heads": 4}, "3 groups do not divide 4 heads"),
        ("mamba2", {"norm_groups": 5}, "norm_groups=5 do not divide 32 channels"),
        ("mamba2", {"delta_limit": (0.1, 0.1)}, "expected 0 ≤ low < high"),
        ("gated_delta_net", {"heads": 4, "value_heads": 2}, "as many value heads as key heads"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ThreefoldError, match=message):
        threefold.mixer(name, width=16, **options)
