"""Hashes of the examples of tasks that are read from packages (`held.py`: digest)."""

from __future__ import annotations

from collections.abc import Mapping

DIGESTS: Mapping[str, str] = {
    "basic-motions": "dc435ca9e303f258",
    "digits8": "f583627fc26c0e7f",
    "dna": "b1d61ce0fac63311",
    "ecg5000": "185d4969d30b4e80",
    "electric-devices": "29431d31e81236a2",
    "electricity": "78ddcd49dfb91fd5",
    "enwik8": "2b49720ec4d78c3c",
    "forda": "e31eb1d5e6a29e83",
    "gunpoint": "c78e1f5414308ed7",
    "image": "ca33c1b017ecb1f0",
    "japanese-vowels": "86d8ef61d63e3189",
    "languages": "f53c1d7779cc9432",
    "phonemes": "b4adc9acb6def05b",
    "pmnist": "1711fe1fffbd06e9",
    "prose": "763ce64bebd0c548",
    "retrieval-bible": "299c90e889c9275a",
    "scifar": "49ed7057a2ee545d",
    "sfashion": "bbdd4faebde3b3cf",
    "shakespeare": "86c4e6aa9db7c042",
    "smnist": "1711fe1fffbd06e9",
    "spam": "0768b102feecd50f",
    "spoken-digits": "30332b4e79b76dd8",
    "spoken-words": "70833129d28399c8",
    "sunspots": "234f3764a8c38438",
    "tagging": "d7b2090f64a7dfd5",
    "text": "85f982f8368cfd2a",
    "text-1k": "5e7dcecf83f85a90",
    "translation": "aedd36635ba33920",
    "tunes": "c8e04d241c5ead92",
}
