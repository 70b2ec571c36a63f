"""Text from a language model as it is generated: whole characters, stop texts, saved states.

A token may end inside a character (UTF-8 has up to four bytes).  Its bytes are held back until the
character is complete, also when the state is saved in between.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import IO, Any, NamedTuple

from threefold.data.stream_encoders import encoder_for
from threefold.errors import ThreefoldError
from threefold.models.model import Model
from threefold.models.saving import OpenedModel
from threefold.runtime.sampling import Sampling
from threefold.runtime.session import Session
from threefold.runtime.source import READ_BYTES, Source
from threefold.runtime.state_files import read_state
from threefold.runtime.streaming import NOTE as STREAM_NOTE

NOTE = "generate"  # key of the notes in a state file


class TokenText(NamedTuple):
    """A generated token, and the text that it completes, which may be empty."""

    token: int
    text: str


class TextWriter:
    """Continue a text with a language model.

    sampling: fields of `Sampling` that override the defaults or, with a state, the saved ones.
    finish_reason: after `generate` or `search`, "length", "stop" or "interrupted".
    """

    def __init__(
        self,
        opened: OpenedModel,
        *,
        sampling: Mapping[str, Any] | None = None,
        seed: int | None = None,
        state_path: str | PathLike[str] | None = None,
    ) -> None:
        self.opened, self.tokenizer = opened, opened.tokenizer
        self.count, self.finish_reason = 0, "length"
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        model = check_writes_text(opened)
        if state_path is None:
            self.session = Session(model, sampling=Sampling(**(sampling or {})), seed=seed)
        else:
            self._restore(state_path, model, sampling or {}, seed)

    @property
    def has_context(self) -> bool:
        """Whether a prompt was read or a state was loaded that can be continued."""
        return self.session.last_output is not None

    def read_prompt(self, prompt: str | IO[bytes], name: str = "prompt") -> None:
        """Read a prompt, a string or a binary file of any length; errors call it `name`."""
        self._decoder.reset()  # a part of a character cannot be completed by a prompt
        data = prompt.encode("utf-8", "surrogateescape") if isinstance(prompt, str) else prompt
        source = Source(data, encoder_for(self.tokenizer))
        source.name = name
        while count := source.load(READ_BYTES):
            self.session.feed(source.take(count).astype("int64"))
        if not self.has_context:
            raise ThreefoldError("the prompt is empty; expected at least one character")

    def generate(
        self,
        max_tokens: int | None,
        stops: Sequence[str] = (),
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Iterator[TokenText]:
        """Sample tokens, endlessly with None, up to a stop text or until `should_stop`."""
        for token in self.session.generate(max_tokens, stop=stops):
            yield self._decode(token)
            if should_stop():
                break
        self.finish_reason = self.session.finish_reason or "interrupted"

    def search(
        self, max_tokens: int, beams: int, length_penalty: float = 0.0, stops: Sequence[str] = ()
    ) -> Iterator[TokenText]:
        """Find the most likely text by beam search, then yield its tokens."""
        best = self.session.search(max_tokens, beams, length_penalty, stops)
        self.finish_reason = best.finish_reason
        for token in best.tokens:
            yield self._decode(token)

    def finish(self) -> str:
        """Return the replacement for an incomplete last character, if there is one."""
        return self._decoder.decode(b"", final=True)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the state to a file, with the bytes of an incomplete last character."""
        incomplete, _ = self._decoder.getstate()
        self.session.save(path, notes={NOTE: {"incomplete_character": incomplete.hex()}})

    def _decode(self, token: int) -> TokenText:
        self.count += 1
        return TokenText(token, self._decoder.decode(self.tokenizer.decode_bytes([token])))

    def _restore(
        self,
        path: str | PathLike[str],
        model: Model,
        sampling: Mapping[str, Any],
        seed: int | None,
    ) -> None:
        """Load a session, and the bytes of the character with which its text ended."""
        state_file = read_state(path)
        self.session = Session.from_state_file(path, state_file, model, seed=seed)
        note = state_file.notes.get(NOTE) or state_file.notes.get(STREAM_NOTE) or {}
        self.session.sampling = replace(self.session.sampling, **sampling)
        self._decoder.decode(bytes.fromhex(note.get("incomplete_character", "")))


def check_writes_text(opened: OpenedModel) -> Model:
    """Return the model if it can write text."""
    model = opened.model
    if not model.writes_text:
        raise ThreefoldError(
            f"{opened.folder}: a {model.kind} model cannot write text; expected a language model "
            "(`threefold predict` and `threefold stream` use other models)"
        )
    if opened.tokenizer is None:
        raise ThreefoldError(
            f"{opened.folder}: the model was saved without a tokenizer, so its tokens cannot be "
            "decoded to text; set model.tokenizer and save it again"
        )
    return model
