"""The sounds of American English in ARPAbet, as in CMUdict: vowels with stress 0, 1 or 2."""

from __future__ import annotations

_VOWELS = "AA AE AH AO AW AY EH ER EY IH IY OW OY UH UW"
_CONSONANTS = "B CH D DH F G HH JH K L M N NG P R S SH T TH V W Y Z ZH"
SOUNDS = tuple(
    sorted([*(f"{v}{stress}" for v in _VOWELS.split() for stress in "012"), *_CONSONANTS.split()])
)
