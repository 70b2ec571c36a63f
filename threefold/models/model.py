"""The base classes of models: a spec, an optional tokenizer, a parameter count, and `save`.

A `Predictor` maps tokens to logits of the next token and carries a state.  Text generation needs
nothing else, so it works for language models and encoder–decoder models alike.

What differs between kinds is a method here, so that sessions, scores, measurements and reports ask
the model instead of testing for its class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib import import_module
from os import PathLike
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from threefold.data.preprocessing import Preprocessing
from threefold.errors import ThreefoldError
from threefold.kernels.replay.program import Loop
from threefold.kernels.replay.stepping import Programs
from threefold.layers.placement import Placed
from threefold.memory.state import State
from threefold.models.alarm_calibration import AlarmCalibration
from threefold.models.calibration import Calibration
from threefold.models.spec import Spec

# Named, not imported: a model is built without what runs it.
PREDICTION = "threefold.runtime.prediction"


class Model(Placed, ABC):
    """A network built from a spec."""

    kind: str
    writes_text: ClassVar[bool] = False  # continues a text: the tokens it reads are those it writes
    streams: ClassVar[bool] = False  # has an output after each element of a single sequence

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        if not isinstance(spec, Spec) or spec.kind != self.kind:
            received = f"a spec of kind {spec.kind!r}" if isinstance(spec, Spec) else repr(spec)
            raise ThreefoldError(
                f"{self.name}: given {received}, expected a Spec of kind {self.kind!r}"
            )
        self.spec = spec
        self.tokenizer: Any = None
        self.preprocessing: Preprocessing | None = None  # from a user's data to tensors
        self.calibration: Calibration | None = None  # of the bands of a forecaster
        self.alarms: AlarmCalibration | None = None  # scores of a clean stretch
        self.programs: Programs = {}  # recorded steps

    def __getstate__(self) -> dict[str, Any]:
        # A copy records its own steps: these contain the addresses of the original weights.
        return {**self.__dict__, "programs": {}}

    @property
    def name(self) -> str:
        return type(self).__name__

    @property
    def parameter_count(self) -> int:
        """Number of trained weights, in however many bits; tied ones count once."""
        codes = (b.numel() for name, b in self.named_buffers() if name.endswith(".codes"))
        return sum(parameter.numel() for parameter in self.parameters()) + sum(codes)

    def example_inputs(self, batch: int, length: int) -> Tensor:
        """Random inputs that this model can read, always the same, to measure it."""
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(self.spec.vocabulary, (batch, length), generator=generator)
        return tokens.to(self.device)

    def respond(
        self, inputs: Tensor, state: State | None = None, *, last: bool = False
    ) -> tuple[Tensor, State]:
        """Outputs [B, L, …] after each element, or [B, …] after the last, and the new state.

        This is what a stream gets; each row of inputs holds everything that is read of an element.
        """
        outputs, after = self(inputs, state)
        return outputs[:, -1] if last else outputs, after

    def replay(
        self, x: Tensor, state: State | None, loop: Loop | None = None
    ) -> tuple[Tensor, State, int] | None:
        """Steps from one element x [B, …] per row in one native call, as `Program.run_loop`.

        None if the steps must run as usual.
        """
        return None

    def prefill(self, inputs: Tensor) -> State:
        """The state after a whole sequence, from which single elements continue."""
        return self.respond(inputs, last=True)[1]

    def continuation(self, inputs: Tensor, count: int) -> Tensor:
        """`count` elements per row that may follow a prefill of `inputs`, to measure decoding."""
        return inputs[:, :count]

    def training_outputs(self, inputs: Tensor) -> Tensor:
        """The outputs that a loss compares with targets, for inputs as in `respond`."""
        outputs: Tensor = self(inputs)[0]
        return outputs

    def interpret(self, output: Tensor) -> Tensor:
        """An output as what it predicts: probabilities of tokens or classes, or numbers."""
        return output.double().softmax(-1)

    def check_streams(self) -> None:
        """Raise an error unless the model can read a stream: causal, an output per element."""
        if not self.streams:
            raise ThreefoldError(
                f"a {self.kind} model cannot read a stream, because it has no output after each "
                "element; expected a language model, a forecaster, a tagger, a classifier or a "
                "regressor"
            )

    def check_state(self, state: State, rows: int) -> None:
        """Raise an error unless `state` is a state of this model for a batch of `rows`."""
        raise ThreefoldError(f"a {self.kind} model has no state")

    def predict(self, inputs: Any, **options: Any) -> Any:
        """Answer raw inputs with labels, numbers, texts, tags or forecasts: `threefold.predict`."""
        return import_module(PREDICTION).predict(self, inputs, **options)

    def merge_adapters(self) -> Self:
        """Add low-rank adapters, if there are any, to the matrices they belong to, in place."""
        from threefold.models.adapters import merge_adapters

        merge_adapters(self)
        return self

    def save(self, folder: str | PathLike[str]) -> None:
        """Write a folder that `threefold.load` reads; a failed save changes nothing."""
        from threefold.models.saving import save

        save(self, folder)


class Predictor(Model):
    """p(next token | tokens so far and the state): a model that can generate tokens."""

    @abstractmethod
    def forward(
        self,
        tokens: Tensor,
        state: State | None = None,
        *,
        form: str = "auto",
        mask: Tensor | None = None,
        last: bool = False,
    ) -> tuple[Tensor, State]:
        """Logits [B, L, vocabulary] of the token after each of tokens [B, L], and the state.

        last: logits [B, vocabulary] after the last real token of each row only.
        Logits at padding and of empty rows are 0.
        """

    @abstractmethod
    def check_state(self, state: State, rows: int) -> None:
        """Raise an error unless `state` is a state of this model for a batch of `rows`."""

    def step(self, tokens: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Run one token per row [B]; returns (logits [B, vocabulary], state)."""
        if tokens.dim() != 1:
            raise ThreefoldError(
                f"{self.name}.step: tokens is {tuple(tokens.shape)}, expected [batch], "
                "one token per row"
            )
        found = self.replay(tokens, state)
        if found is not None:
            return found[:2]
        logits, state = self(tokens.unsqueeze(1), state, form="step", last=True)
        return logits, state
