"""ŷ = head(pool(norm(stack(embedding(x))))): one or several numbers per sequence.

The head of a classifier without the softmax, trained by the squared error: ŷ is an estimate of the
mean of the targets, E[y | x_1 … x_L].
"""

from __future__ import annotations

from torch import Tensor

from threefold.models.classifier import PooledModel


class Regressor(PooledModel):
    """Predict `outputs` numbers from a sequence, or from a pair of them.

    The numbers are in the units of the targets that it was trained with; `predict` converts them
    back to those of the user's data.
    """

    kind = "regressor"
    outputs_option = "outputs"

    def interpret(self, output: Tensor) -> Tensor:
        """The outputs are the predicted numbers."""
        return output
