"""A session: (state, position, last answer, random numbers) of one live stream of a model.

What is fed changes the state; the answer after the last element stays at hand, so that the next
one can be judged, predicted or drawn.  Nothing but the model's own state grows with the stream.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Generator, Tensor

from threefold.errors import ThreefoldError
from threefold.memory import state as states
from threefold.memory.state import State
from threefold.models.backbone import Backbone
from threefold.models.classifier import Classifier
from threefold.models.forecaster import Forecaster
from threefold.models.language import LanguageModel
from threefold.models.tagger import Tagger
from threefold.runtime.beam import Beams, Hypothesis, beam_search
from threefold.runtime.generation import evaluating
from threefold.runtime.sampling import Sampling, row_generator, whole
from threefold.runtime.state_files import StateFile, fitted, read_state, save_state

Streaming: TypeAlias = LanguageModel | Forecaster | Tagger | Classifier
PIECE = 4096  # elements read at once when only the last answer is wanted
NOTE = "session"


class Session:
    """A model at work on one stream, element after element.

    seed: of the tokens that are drawn.  limit: bytes that the state may take; a feed that would
    need more is refused (attention's state grows with what it has read, a recurrent one does not).
    """

    def __init__(
        self,
        model: Streaming,
        *,
        sampling: Sampling | None = None,
        seed: int | None = None,
        limit: int | None = None,
    ) -> None:
        self.model = streaming(model)
        self.sampling = sampling or Sampling()
        if seed is not None and not whole(seed):
            raise ThreefoldError(f"session: seed is {seed!r}, expected a whole number or None")
        self.seed = int(torch.randint(2**62, ())) if seed is None else seed
        self.limit = limit
        self.reset()

    def reset(self) -> None:
        """Forget the stream; the random numbers begin again, too."""
        self.state: State = self.model.empty_state(1)
        self.position = 0
        self.last: Tensor | None = None  # the answer after the last element, without a batch
        self.random = row_generator(self.seed, 0)
        known = self.model.spec.vocabulary if isinstance(self.model, LanguageModel) else 0
        self.seen = torch.zeros(known, dtype=torch.bool)  # tokens, for a repetition penalty

    @property
    def state_bytes(self) -> int:
        """Bytes that the state takes."""
        return sum(leaf.nbytes for _, leaf in states.leaves(self.state))

    def read(self, elements: Any) -> Tensor:
        """The answer after each element, [L, …]: logits, forecasts or logits of classes.

        elements: tokens [L] or numbers [L, size]; as many as their answers may take memory.
        """
        inputs = self._inputs(elements)
        with torch.no_grad(), evaluating(self.model):
            answers, self.state = respond(self.model, inputs, self.state)
        self._advance(inputs, answers[0, -1])
        return answers[0]

    def feed(self, elements: Any) -> Tensor:
        """Read any number of elements, a piece at a time; the answer after the last, […]."""
        inputs = self._inputs(elements)
        for begin in range(0, inputs.shape[1], PIECE):
            piece = inputs[:, begin : begin + PIECE]
            with torch.no_grad(), evaluating(self.model):
                answer, self.state = respond(self.model, piece, self.state, last=True)
            self._advance(piece, answer[0])
        assert self.last is not None  # there was an element
        return self.last

    def predict(self) -> Tensor:
        """What the model expects next: probabilities of tokens or classes, or a forecast."""
        answer = self._answer()
        return answer if isinstance(self.model, Forecaster) else answer.double().softmax(-1)

    def draw(self) -> int:
        """Choose the next token by the session's sampling, without reading it."""
        self._writer()
        logits = self._answer()[: self._known].unsqueeze(0)
        seen = self.seen[: self._known].unsqueeze(0).to(logits.device)
        return int(self.sampling.choose(logits, seen, [self.random]))

    def generate(self, count: int | None = None) -> Iterator[int]:
        """Draw and read so many tokens, or endlessly: each is part of the state once it comes."""
        made = 0
        while count is None or made < count:
            token = self.draw()
            self.feed([token])
            made += 1
            yield token

    def search(
        self,
        count: int,
        beams: int,
        length_penalty: float = 0.0,
        stops: Sequence[Sequence[int]] = (),
    ) -> Hypothesis:
        """The likeliest text of at most `count` tokens, so many at a time; it is read, too."""
        ends = [tuple(stop) for stop in stops]

        def at_end(text: tuple[int, ...]) -> bool:
            return any(text[-len(end) :] == end for end in ends)

        plan, logits = Beams(beams, length_penalty, count), self._answer().unsqueeze(0)
        with torch.no_grad(), evaluating(self.model):
            found = beam_search(self._writer(), logits, self.state, plan, at_end, len(ends))
        best = found[0][0]
        self.feed(list(best.tokens))
        return best

    def fork(self, *, seed: int | None = None) -> Session:
        """A second session from the same moment on; with a seed it draws other tokens."""
        other = copy.copy(self)
        other.state = states.clone(self.state)
        other.last = None if self.last is None else self.last.clone()
        other.seen = self.seen.clone()
        other.random = Generator()
        other.random.set_state(self.random.get_state())
        if seed is not None:
            other.seed, other.random = seed, row_generator(seed, 0)
        return other

    def save(
        self,
        path: str | PathLike[str],
        *,
        notes: Mapping[str, Any] | None = None,
        beside: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Write everything needed to go on to a file, which is a state file, too."""
        tensors = {"random": self.random.get_state(), "seen": self.seen, **(beside or {})}
        if self.last is not None:
            tensors["last"] = self.last
        noted = {**asdict(self.sampling), "seed": self.seed, "position": self.position}
        save_state(
            path,
            self.state,
            self.model,
            position=self.position,
            notes={NOTE: noted, **(notes or {})},
            beside=tensors,
        )

    @classmethod
    def load(
        cls,
        path: str | PathLike[str],
        model: Streaming,
        *,
        sampling: Sampling | None = None,
        seed: int | None = None,
        limit: int | None = None,
    ) -> Session:
        """The session in a file, of the same model; what is given here replaces what it says.

        The file of `save_state` will do: such a session answers once it has been fed.
        """
        return cls.restored(path, read_state(path), model, sampling, seed, limit)

    @classmethod
    def restored(
        cls,
        path: str | PathLike[str],
        found: StateFile,
        model: Streaming,
        sampling: Sampling | None = None,
        seed: int | None = None,
        limit: int | None = None,
    ) -> Session:
        """The session that was read from a file."""
        model = streaming(model)
        state = fitted(path, found, model)
        rows = states.batch_size(state)
        if rows not in (1, None):
            raise ThreefoldError(
                f"{path}: a state of {rows} rows, a session has one; choose one with "
                "threefold.runtime.state_files.fork_state(…, rows=[0])"
            )
        noted = found.notes.get(NOTE)
        if noted is not None and sampling is None:
            sampling = Sampling(**{name: noted[name] for name in asdict(Sampling())})
        given = seed if seed is not None or noted is None else noted["seed"]
        made = cls(model, sampling=sampling, seed=given, limit=limit)
        made.state = state
        made.position = (found.position or [0])[0]
        made.last = found.beside.get("last")
        made.last = None if made.last is None else made.last.to(model.device)
        made.seen = found.beside.get("seen", made.seen)
        if noted is not None and seed is None:
            made.random.set_state(found.beside["random"])
        return made

    @property
    def _known(self) -> int:
        """Tokens that can be written: a vocabulary may be filled up behind the tokenizer's."""
        tokenizer = self.model.tokenizer
        return self.model.spec.vocabulary if tokenizer is None else int(tokenizer.vocabulary)

    def _writer(self) -> LanguageModel:
        if not isinstance(self.model, LanguageModel):
            raise ThreefoldError(
                f"session: tokens are drawn from a LanguageModel, this is a {self.model.name}"
            )
        return self.model

    def _answer(self) -> Tensor:
        if self.last is None:
            raise ThreefoldError("session: nothing was read yet, so nothing is expected; feed it")
        return self.last

    def _inputs(self, elements: Any) -> Tensor:
        """Tokens [1, L] or numbers [1, L, size], in the dtype and on the device of the model."""
        size = self.model.input_size
        dtype = self.model.embedding.weight.dtype if size else torch.int64
        if isinstance(elements, np.ndarray):  # a copy: tokens may be narrow, and not writable
            elements = elements.astype(np.int64 if elements.dtype.kind in "iu" else np.float64)
        try:
            made = torch.as_tensor(elements)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ThreefoldError(
                f"session: given {type(elements).__name__} that is no table of numbers ({error}); "
                f"expected {f'numbers [length, {size}]' if size else 'tokens [length]'}"
            ) from error
        whole_numbers = not (made.is_floating_point() or made.is_complex())
        shape = tuple(made.shape)
        if made.numel() == 0 or (shape[1:] != (size,) if size else len(shape) != 1):
            wanted = f"numbers [length, {size}]" if size else "tokens [length]"
            raise ThreefoldError(f"session: given {shape}, expected {wanted}, at least one")
        if not size and not whole_numbers:
            raise ThreefoldError(f"session: tokens are {made.dtype}, expected whole numbers")
        self._check_limit(len(made))
        return made.to(self.model.device, dtype).unsqueeze(0)

    def _check_limit(self, count: int) -> None:
        after = self.position + count
        if self.limit is not None and self.model.state_size(after) > self.limit:
            raise ThreefoldError(
                f"session: its state would take {self.model.state_size(after):,} bytes after "
                f"{after:,} elements, the limit is {self.limit:,}; reset it, or choose a mixer "
                "whose state does not grow"
            )

    def _advance(self, inputs: Tensor, last: Tensor) -> None:
        self.position += inputs.shape[1]
        self.last = last.clone()  # not a view that keeps the answers of a whole piece
        if not self.model.input_size and len(self.seen):
            self.seen[inputs[0].cpu()] = True


def streaming(model: Any) -> Any:
    """The model, if it answers a stream: a kind with an answer after each element, and causal."""
    kinds = (LanguageModel, Forecaster, Tagger, Classifier)
    if not isinstance(model, kinds):
        name = getattr(model, "kind", type(model).__name__)
        raise ThreefoldError(
            f"a {name} model has no answer after each element of a stream; expected a language "
            "model, a forecaster, a tagger or a classifier"
        )
    if isinstance(model, Classifier) and model.paired:
        raise ThreefoldError("a classifier of pairs reads two texts, and a stream is one")
    if not model.causal:
        names = ", ".join(dict.fromkeys(name for name, _ in model.spec.entries))
        both = ", in both directions" if model.spec.option("bidirectional", False) else ""
        raise ThreefoldError(
            f"this {model.kind} ({names}{both}) sees later elements, so it has no causal form and "
            "no state; a stream needs causal mixers"
        )
    return model


def respond(
    model: Backbone, inputs: Tensor, state: State, last: bool = False
) -> tuple[Tensor, State]:
    """Answers [B, L, …] after each element, or [B, …] after the last, and the state."""
    if isinstance(model, LanguageModel):
        return model(inputs, state, last=last)  # type: ignore[no-any-return]
    if isinstance(model, Classifier):
        if last:
            return model(inputs, state)  # type: ignore[no-any-return]
        return model.forward_per_element(inputs, state)
    if isinstance(model, Forecaster):
        series, more = inputs[..., : model.channels], inputs[..., model.channels :]
        answers, after = model(series, state, exogenous=more if model.exogenous else None)
    else:
        answers, after = model(inputs, state)
    return answers[:, -1] if last else answers, after
