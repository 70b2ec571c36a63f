"""Models of a race have the same size: the solver, for every mixer that can take part."""

from __future__ import annotations

import pytest
import torch

import threefold
from threefold.errors import ThreefoldError
from threefold.lab.race.sizing import TOLERANCE, count_parameters, match_parameters, solve
from threefold.layers.table import MIXERS
from threefold.models.spec import Spec


def language(mixer: str, width: int = 48, **changes: object) -> Spec:
    return Spec("language", width=width, depth=2, mixers=mixer, **changes)  # type: ignore[arg-type]


def language_mixers() -> list[str]:
    """Mixers that a language model can use."""
    names = []
    for name in MIXERS:
        try:
            count_parameters(language(name, 32))
        except ThreefoldError:
            continue
        names.append(name)
    return names


def test_counting_allocates_nothing_and_draws_nothing() -> None:
    spec = language("mamba2")
    before = torch.random.get_rng_state()
    counted = count_parameters(spec)
    assert torch.equal(before, torch.random.get_rng_state())
    assert counted == threefold.build(spec).parameter_count
    # It would take 8 GB of float32.
    assert count_parameters(language("attention", 8192, vocabulary=2**16)) > 2e9


def test_every_mixer_is_matched_within_three_percent() -> None:
    names = language_mixers()
    assert len(names) > 35
    target = 70_000
    sized = match_parameters({name: language(name) for name in names}, target)
    for name, found in sized.items():
        assert abs(found.parameters - target) <= TOLERANCE * target, name
        assert found.spec.width % 16 == 0 or name == "long_conv", name
    # The count is that of the real model, not the prediction of the solver.
    for name in ("lstm", "attention", "mamba2"):
        assert threefold.build(sized[name].spec).parameter_count == sized[name].parameters


def test_the_default_target_is_the_median_whose_model_is_unchanged() -> None:
    specs = {name: language(name) for name in ("rnn", "attention", "mamba2")}
    sized = match_parameters(specs)
    assert sized["attention"].spec == specs["attention"]
    assert sized["rnn"].spec.width == 48  # the channel mixer makes up for the difference
    assert sized["rnn"].spec.channel_entry[1]["hidden"] > 128


@pytest.mark.parametrize("target", [12_000, 400_000])
def test_far_targets(target: int) -> None:
    for mixer in ("gru", "mamba"):
        assert abs(solve(language(mixer), target).error) <= TOLERANCE


def test_without_a_channel_mixer_and_hybrids() -> None:
    assert abs(solve(language("mamba", channel="none"), 50_000).error) <= TOLERANCE
    hybrid = Spec("language", width=48, depth=4, mixers=("mamba", "attention"))
    found = solve(hybrid, 150_000)
    assert abs(found.error) <= TOLERANCE and found.spec.depth % 2 == 0


def test_impossible_targets_are_refused() -> None:
    with pytest.raises(ThreefoldError, match=r"no model of attention has 10 parameters within 3 %"):
        solve(language("attention"), 10)
    with pytest.raises(ThreefoldError, match="a target of 0 parameters"):
        match_parameters({"a": language("gru")}, 0)
