"""Hashes of the examples of tasks that are read from packages (`held.py`: digest)."""

from __future__ import annotations

from collections.abc import Mapping

DIGESTS: Mapping[str, str] = {
    "basic-motions": "9939c82b2498ee22",
    "digits8": "f583627fc26c0e7f",
    "dna": "b1d61ce0fac63311",
    "electricity": "578601cc1ab035d7",
    "gunpoint": "2c391bbaaee84e6f",
    "japanese-vowels": "b942b3d7973d2764",
    "languages": "f53c1d7779cc9432",
    "pmnist": "1711fe1fffbd06e9",
    "prose": "763ce64bebd0c548",
    "sfashion": "bbdd4faebde3b3cf",
    "shakespeare": "86c4e6aa9db7c042",
    "smnist": "1711fe1fffbd06e9",
    "spam": "0768b102feecd50f",
    "sunspots": "89b4f7d2e194f9d8",
    "tagging": "d7b2090f64a7dfd5",
    "tunes": "c8e04d241c5ead92",
}
