"""Does a mixer of your own keep the contract?  `threefold.testing.check_mixer(MyMixer)`."""

from __future__ import annotations

from threefold.testing.check import check_mixer
from threefold.testing.closeness import ContractError

__all__ = ["ContractError", "check_mixer"]
