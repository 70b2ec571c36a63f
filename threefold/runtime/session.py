"""A session: state, position, last output and sampled tokens of one live stream of a model.

Feeding elements changes the state; the output after the last element is kept, so that the next
element can be scored, predicted or sampled.  Only the model's own state can grow with the stream.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor

from threefold.errors import ThreefoldError
from threefold.memory import state as states
from threefold.memory.state import State
from threefold.models.model import Model
from threefold.runtime.beam import BeamSettings, Hypothesis
from threefold.runtime.decoding import DecodingRow, TokenDecoder, choose_seed, eval_mode
from threefold.runtime.native_loop import read_steps
from threefold.runtime.sampling import Sampling
from threefold.runtime.state_files import StateFile, read_state, save_state, state_for_model
from threefold.runtime.stops import LONGEST_STOP, Stop, parse_stops

FEED_CHUNK = 4096  # elements read at a time when only the last output is needed
NOTE = "session"  # key of the notes in a state file


class Session:
    """A model reading one stream, element by element.

    seed: for the tokens that are sampled.  finish_reason: why the last `generate` or `search`
    ended, "stop" or "length".  max_state_bytes: refuse to read elements after which
    the state would be larger (attention's state grows with each element, a recurrent one does not).
    """

    def __init__(
        self,
        model: Model,
        *,
        sampling: Sampling | None = None,
        seed: int | None = None,
        max_state_bytes: int | None = None,
    ) -> None:
        self.model = check_streams(model)
        if model.kind == "hierarchical":
            raise ThreefoldError(
                "a session has an answer after each element, a hierarchical model after each "
                "sentence; use threefold.stream, or model(tokens, state)"
            )
        self.sampling = sampling or Sampling()
        self.seed = choose_seed(seed, "session")
        self.max_state_bytes = max_state_bytes
        self.reset()

    def reset(self) -> None:
        """Forget the stream and draw the random numbers of the seed from the first one again."""
        self.state: State = self.model.empty_state(1)
        self.position = 0
        self.last_output: Tensor | None = None  # after the last element, without a batch dimension
        self.draws = 0  # random numbers used by sampled tokens
        self.tail: deque[int] = deque(maxlen=LONGEST_STOP)  # generated since elements were fed
        self.finish_reason = ""
        size = self.model.spec.vocabulary if self.model.writes_text else 0
        self.seen_tokens = np.zeros(size, dtype=bool)  # for the repetition penalty

    @property
    def state_bytes(self) -> int:
        """Size of the state in bytes."""
        return sum(leaf.nbytes for _, leaf in states.leaves(self.state))

    def read(self, elements: Any) -> Tensor:
        """Read elements and return the output after each, [L, …]: logits, or forecasts.

        elements: tokens [L] or numbers [L, size]; the outputs of all of them must fit in memory.
        """
        inputs = self._inputs(elements)
        if inputs.shape[1] == 1:
            return self.read_steps(elements)
        with torch.no_grad(), eval_mode(self.model):
            outputs, self.state = self.model.respond(inputs, self.state)
        answers: Tensor = outputs[0]
        self._advance(inputs, answers[-1])
        return answers

    def read_steps(self, elements: Any) -> Tensor:
        """`read`, one element after another: the same bits as with a call for each."""
        inputs = self._inputs(elements)
        with torch.no_grad(), eval_mode(self.model):
            found = read_steps(self.model, inputs, self.state)
            if found is None:
                outputs, state = [], self.state
                for t in range(inputs.shape[1]):
                    output, state = self.model.respond(inputs[:, t : t + 1], state)
                    outputs.append(output)
                found = torch.cat(outputs, 1), state
        answers, self.state = found[0][0], found[1]
        self._advance(inputs, answers[-1])
        return answers

    def feed(self, elements: Any) -> Tensor:
        """Read any number of elements in chunks and return the output after the last, […]."""
        inputs = self._inputs(elements)
        if inputs.shape[1] == 1:
            return self.read_steps(elements)[0]
        for begin in range(0, inputs.shape[1], FEED_CHUNK):
            chunk = inputs[:, begin : begin + FEED_CHUNK]
            with torch.no_grad(), eval_mode(self.model):
                output, self.state = self.model.respond(chunk, self.state, last=True)
            self._advance(chunk, output[0])
        assert self.last_output is not None  # there was at least one element
        return self.last_output

    def predict(self) -> Tensor:
        """Predict the next element: probabilities of tokens or classes, numbers or a forecast."""
        prediction: Tensor = self.model.interpret(self._last_output())
        return prediction

    def sample(self) -> int:
        """Choose the next token by the session's sampling settings, without reading it."""
        row = self._row(None, ())
        [(_, token)] = self._decoder(row).choose()
        self.draws = row.draws
        return token

    def generate(self, max_tokens: int | None = None, *, stop: Stop = ()) -> Iterator[int]:
        """Sample and read tokens; a token is yielded once it is read.

        max_tokens: at least 1, or None for no limit.
        stop: tokens, sequences of tokens, or texts, after which the generation ends.
        """
        self._row(max_tokens, stop)  # refuses at the call, not at the first token
        return self._generate(max_tokens, stop)

    def _generate(self, max_tokens: int | None, stop: Stop) -> Iterator[int]:
        row, self.finish_reason = self._row(max_tokens, stop), ""
        while not self.finish_reason:
            # From the session's own state: elements may have been fed between two tokens.
            row.draws, decoder = self.draws, self._decoder(row)
            self._check_state_size(1)
            [(_, token)] = decoder.choose()
            decoder.read()
            self._take(decoder, 1)
            yield token

    def search(
        self, max_tokens: int, beams: int, length_penalty: float = 0.0, stop: Stop = ()
    ) -> Hypothesis:
        """Find the most likely text of at most `max_tokens` by beam search, and read it."""
        settings = BeamSettings(beams, length_penalty, max_tokens)
        decoder = self._decoder(self._row(max_tokens, stop))
        best = decoder.search(settings)[0][0]
        self._check_state_size(len(best.tokens))
        decoder.read()
        self._take(decoder, len(best.tokens))
        return best

    def _row(self, max_tokens: int | None, stop: Stop) -> DecodingRow:
        """This session as a row of a decoder; nothing that the row does changes the session."""
        return DecodingRow(
            self.sampling,
            self.seed,
            self.seen_tokens.copy(),
            stops=parse_stops(stop, self._language_model()),
            max_tokens=max_tokens,
            draws=self.draws,
            tail=self.tail.copy(),
        )

    def _decoder(self, row: DecodingRow) -> TokenDecoder:
        decoder = TokenDecoder(self._language_model())
        decoder.admit([row], self.state, self._last_output().unsqueeze(0))
        return decoder

    def _take(self, decoder: TokenDecoder, count: int) -> None:
        """Continue where a decoder is after it has chosen and read `count` tokens."""
        [row] = decoder.rows
        assert decoder.logits is not None  # the last token has been read
        self.state, self.last_output = decoder.state, decoder.logits[0]
        self.position += count
        self.draws, self.finish_reason = row.draws, row.finish_reason
        self.seen_tokens, self.tail = row.seen, row.tail

    def fork(self, *, seed: int | None = None) -> Session:
        """Copy the session as it is now; with a seed, the copy samples other tokens."""
        other = copy.copy(self)
        other.state = states.clone(self.state)
        other.last_output = None if self.last_output is None else self.last_output.clone()
        other.seen_tokens, other.tail = self.seen_tokens.copy(), self.tail.copy()
        if seed is not None:
            other.seed, other.draws = choose_seed(seed, "session"), 0
        return other

    def save(
        self,
        path: str | PathLike[str],
        *,
        notes: Mapping[str, Any] | None = None,
        extra_tensors: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Write everything needed to continue to a state file."""
        tensors = {"seen_tokens": torch.from_numpy(self.seen_tokens)}
        if self.last_output is not None:
            tensors["last_output"] = self.last_output
        note = {
            **asdict(self.sampling),
            "seed": self.seed,
            "draws": self.draws,
            "tail": list(self.tail),
            "position": self.position,
        }
        save_state(
            path,
            self.state,
            self.model,
            position=self.position,
            notes={NOTE: note, **(notes or {})},
            extra_tensors={**tensors, **(extra_tensors or {})},
        )

    @classmethod
    def load(
        cls,
        path: str | PathLike[str],
        model: Model,
        *,
        sampling: Sampling | None = None,
        seed: int | None = None,
        max_state_bytes: int | None = None,
        check_weights: bool = True,
    ) -> Session:
        """Load a session of the same model from a file; arguments override the saved settings.

        A file written by `save_state` works too: such a session must be fed before it predicts.
        check_weights=False accepts a state that was computed with other weights.
        """
        return cls.from_state_file(
            path, read_state(path), model, sampling, seed, max_state_bytes, check_weights
        )

    @classmethod
    def from_state_file(
        cls,
        path: str | PathLike[str],
        state_file: StateFile,
        model: Model,
        sampling: Sampling | None = None,
        seed: int | None = None,
        max_state_bytes: int | None = None,
        check_weights: bool = True,
    ) -> Session:
        """Restore a session from a state file that has already been read."""
        model = check_streams(model)
        state = state_for_model(path, state_file, model, check_weights)
        rows = states.batch_size(state)
        if rows not in (1, None):
            raise ThreefoldError(
                f"{path}: this state has {rows} rows, but a session has one; select a row with "
                "threefold.runtime.state_files.fork_state(…, rows=[0])"
            )
        note, tensors = state_file.notes.get(NOTE), state_file.extra_tensors
        if note is not None and sampling is None:
            sampling = Sampling(**{name: note[name] for name in asdict(Sampling())})
        first_seed = seed if seed is not None or note is None else note["seed"]
        session = cls(model, sampling=sampling, seed=first_seed, max_state_bytes=max_state_bytes)
        session.state = state
        session.position = (state_file.position or [0])[0]
        if "last_output" in tensors:
            session.last_output = tensors["last_output"].to(model.device)
        if "seen_tokens" in tensors:
            session.seen_tokens = tensors["seen_tokens"].numpy().copy()
        if not state_file.notes.get("stream", {}).get("one_session", True):
            raise ThreefoldError(
                f"{path}: saved by a stream of windows or of several sequences, which is not one "
                "session; continue it with `threefold stream`"
            )
        if "pending" in tensors:  # what a stream read after its last complete chunk
            session.feed(tensors["pending"])
        if note is not None:
            session.draws = note["draws"] if seed is None else 0
            session.tail.extend(note["tail"])
        return session

    def _language_model(self) -> Any:
        if not self.model.writes_text:
            raise ThreefoldError(
                f"session: only a language model can generate tokens, this is a {self.model.name}"
            )
        return self.model

    def _last_output(self) -> Tensor:
        if self.last_output is None:
            raise ThreefoldError(
                "session: there is no prediction before the first element; call feed first"
            )
        return self.last_output

    def _inputs(self, elements: Any) -> Tensor:
        """Return tokens [1, L] or numbers [1, L, size] with the model's dtype and device."""
        size = self.model.input_size
        expected = f"numbers [length, {size}]" if size else "tokens [length]"

        inputs = _as_tensor(elements, expected)
        shape = tuple(inputs.shape)
        if inputs.numel() == 0 or (shape[1:] != (size,) if size else len(shape) != 1):
            raise ThreefoldError(
                f"session: the elements have shape {shape}, expected {expected}, at least one"
            )
        if not size and (inputs.is_floating_point() or inputs.is_complex()):
            raise ThreefoldError(f"session: tokens are {inputs.dtype}, expected integers")
        self._check_state_size(len(inputs))
        dtype = self.model.dtype if size else torch.int64
        return inputs.to(self.model.device, dtype).unsqueeze(0)

    def _check_state_size(self, count: int) -> None:
        after = self.position + count
        limit = self.max_state_bytes
        if limit is not None and self.model.state_size(after) > limit:
            raise ThreefoldError(
                f"session: the state would take {self.model.state_size(after):,} bytes after "
                f"{after:,} elements, but max_state_bytes is {limit:,}; reset the session, or use "
                "a mixer whose state does not grow"
            )

    def _advance(self, inputs: Tensor, output: Tensor) -> None:
        self.position += inputs.shape[1]
        self.last_output = output.clone()  # a view would keep the outputs of a whole chunk
        self.tail.clear()
        if not self.model.input_size and len(self.seen_tokens):
            self.seen_tokens[inputs[0].cpu().numpy()] = True


def _as_tensor(elements: Any, expected: str) -> Tensor:
    """Convert what `torch.as_tensor` accepts; expected: the type for the error message."""
    if isinstance(elements, np.ndarray):  # a copy: tokens may be narrow or read-only
        elements = elements.astype(np.int64 if elements.dtype.kind in "iu" else np.float64)
    try:
        return torch.as_tensor(elements)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ThreefoldError(
            f"session: the elements are a {type(elements).__name__} that is not an array of "
            f"numbers ({error}); expected {expected}"
        ) from error


def check_streams(model: Any) -> Any:
    """Return the model if it can read a stream: causal, with an output after each element."""
    if not isinstance(model, Model):
        raise ThreefoldError(
            f"a stream needs a model of Threefold, not a {type(model).__name__}; load one with "
            "threefold.load(folder)"
        )
    model.check_streams()
    return model
