"""Threefold against plain torch and its peers, side by side in one run: `python -m benchmarks`.

One file a benchmark: a function `run()` that yields a `measure.Race` for each size.
"""
