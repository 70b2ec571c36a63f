"""Threefold compared with plain torch and its peers in one run: `python -m benchmarks`.

Each benchmark is one file with a function `run()` that yields a `measure.Comparison` per size.
"""
