"""Evaluation of a trained model: metrics with their baselines, tables, and a page.

threefold.evaluate("runs/mine")                    the test split of the run
threefold.evaluate("runs/mine", "new.csv")         all of a new file, with the model's own labels
"""

from __future__ import annotations

from threefold.training.evaluations.evaluation import Evaluation, evaluate

__all__ = ["Evaluation", "evaluate"]
