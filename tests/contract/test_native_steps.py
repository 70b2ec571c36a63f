"""A language model of any causal mixer makes a step by one native call, so that races are fair."""

from __future__ import annotations

import pytest
import torch

import threefold
from threefold.kernels import library
from threefold.kernels.replay.program import Program
from threefold.kernels.replay.stepping import refusals
from threefold.models.language import LanguageModel
from threefold.models.spec import Spec

CAUSAL = [name for name, entry in threefold.MIXERS.items() if entry.load().causal]
# A product with all elements so far takes longer than the calls.
NOT_RECORDED = {"ckconv"}


@pytest.mark.skipif(library.current().native is None, reason="no native kernels")
@pytest.mark.parametrize("mixer", CAUSAL)
def test_a_step_is_one_native_call(mixer: str) -> None:
    torch.manual_seed(0)
    model = LanguageModel(Spec("language", 32, 2, (mixer,), vocabulary=11)).eval()
    with torch.no_grad():
        _, state = model(torch.randint(0, 11, (2, 9)))
        for _ in range(3):
            _, state = model.step(torch.tensor([3, 5]), state)
    assert bool(refusals(model)) == (mixer in NOT_RECORDED)
    recorded = any(isinstance(program, Program) for program in model.programs.values())
    assert recorded != (mixer in NOT_RECORDED)
