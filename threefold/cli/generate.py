"""`threefold generate`: text from a language model, as it comes, from a prompt or from a state."""

from __future__ import annotations

import codecs
import shlex
import sys
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from threefold.cli import output
from threefold.errors import ThreefoldError

if TYPE_CHECKING:
    from threefold.runtime.session import Session

NOTE = "generate"
INTERRUPTED = 130


Model = Annotated[str, typer.Argument(help="A saved model, or the folder of a run.")]
Prompt = Annotated[str | None, typer.Argument(help="The text to continue; - reads it from stdin.")]
Tokens = Annotated[int, typer.Option(min=0, help="How many; 0 goes on until stopped.")]
Temperature = Annotated[
    float | None, typer.Option(min=0, help="0 takes the likeliest token; 1 unless given.")
]
TopK = Annotated[int | None, typer.Option(min=1, help="Of the k likeliest tokens.")]
TopP = Annotated[float | None, typer.Option(help="Of the likeliest tokens that hold a mass of p.")]
Penalty = Annotated[float | None, typer.Option(help="Above 1: tokens seen before are less likely.")]
Stops = Annotated[
    list[str] | None, typer.Option(help="End after this text; may be given several times.")
]
Seed = Annotated[int | None, typer.Option(help="Same seed, same text.")]
Beam = Annotated[
    int | None, typer.Option(min=1, help="Search for the likeliest text, so many at a time.")
]
LengthPenalty = Annotated[float, typer.Option(help="Of --beam: above 0 favours length.")]
StateIn = Annotated[Path | None, typer.Option(help="Go on from this state file.")]
StateOut = Annotated[Path | None, typer.Option(help="Write the state after the text to this file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print text and figures as JSON, at the end.")]


def generate(
    model: Model,
    prompt: Prompt = None,
    tokens: Tokens = 200,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    repetition_penalty: Penalty = None,
    stop: Stops = None,
    seed: Seed = None,
    beam: Beam = None,
    length_penalty: LengthPenalty = 0.0,
    state: StateIn = None,
    save_state: StateOut = None,
    as_json: AsJson = False,
) -> None:
    """Continue a text, token by token; the state can be kept and gone on from."""
    drawn = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "repetition_penalty": repetition_penalty,
    }
    drawn = {name: value for name, value in drawn.items() if value is not None}
    if beam is not None and (drawn or tokens == 0):
        raise ThreefoldError(
            "--beam searches for the likeliest text of --tokens at most; leave out --temperature, "
            "--top-k, --top-p and --repetition-penalty, and give --tokens from 1"
        )
    if beam is None and length_penalty:
        raise ThreefoldError(f"--length-penalty {length_penalty} belongs to --beam")
    from threefold.data.atomic_files import check_writable
    from threefold.kernels.system_memory import keep_memory
    from threefold.runtime.interrupts import Interrupts

    if save_state is not None:
        check_writable(save_state)
    keep_memory()
    writer = Writer(model, drawn, seed, state, silent=as_json)
    writer.read(prompt)
    start = time.monotonic()
    with Interrupts() as interrupts:
        if beam is None:
            writer.draw(tokens or None, stop or [], interrupts)
        else:
            writer.search(tokens, stop or [], beam, length_penalty)
    writer.close(save_state)
    if as_json:
        output.say_json(writer.facts(time.monotonic() - start, save_state))
    if interrupts.asked:
        words = ["threefold", "generate", model, "--state", str(save_state)]
        kept = f"go on with: {shlex.join(words)}"
        lost = "nothing was kept to go on from: --save-state FILE does that"
        print(f"stopped; {kept if save_state else lost}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED)


class Writer:
    """A session of a language model, and the text that comes of it."""

    def __init__(
        self, folder: str, drawn: dict[str, Any], seed: int | None, state: Path | None, silent: bool
    ) -> None:
        from threefold.runtime.opening import open_model
        from threefold.runtime.sampling import Sampling

        opened = open_model(folder)
        self.tokenizer, self.sha256, self.folder = opened.tokenizer, opened.sha256, opened.folder
        model = writing(opened.model, folder)
        held = b""
        if state is None:
            from threefold.runtime.session import Session

            self.session = Session(model, sampling=Sampling(**drawn), seed=seed)
        else:
            self.session, held = self._restored(state, model, drawn, seed)
        self.silent = silent
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.text = self.decoder.decode(held)
        self.made: list[int] = []
        self.count, self.reason = 0, "length"

    def read(self, prompt: str | None) -> None:
        """The prompt, encoded by itself; from stdin in pieces of any number."""
        if prompt is None or prompt == "":
            if self.session.last is None:
                raise ThreefoldError(
                    "nothing to continue; give a PROMPT, - for standard input, or --state with a "
                    "file that --save-state wrote"
                )
            return
        self.decoder.reset()  # a part of a character cannot go on behind a prompt
        from threefold.data.stream_encoders import encoder_for
        from threefold.runtime.source import READ, Source

        given = output.typed() if prompt == "-" else prompt.encode("utf-8", "surrogateescape")
        source = Source(given, encoder_for(self.tokenizer))
        source.name = "stdin" if prompt == "-" else "prompt"
        while count := source.load(READ):
            self.session.feed(source.take(count).astype("int64"))
        if self.session.last is None:
            raise ThreefoldError("the prompt is empty; give at least one character")

    def draw(self, count: int | None, stops: list[str], interrupts: Any) -> None:
        """Tokens as they come, up to a stop text or an interruption."""
        ends = self._stops(stops)
        tail: deque[int] = deque(maxlen=max(map(len, ends), default=1))
        for token in self.session.generate(count):
            self._say(token)
            tail.append(token)
            if any(list(tail)[-len(end) :] == end for end in ends):
                self.reason = "stop"
                break
            if interrupts.asked:
                self.reason = "interrupted"
                break

    def search(self, count: int, stops: list[str], beams: int, penalty: float) -> None:
        """The likeliest text at once; the session then reads it."""
        best = self.session.search(count, beams, penalty, self._stops(stops))
        self.reason = best.reason
        for token in best.tokens:
            self._say(token)

    def close(self, save: Path | None) -> None:
        """Save the state if asked; what is held of a character goes with it, else is shown."""
        held, _ = self.decoder.getstate()
        if save is None:
            self._show(self.decoder.decode(b"", final=True))
        else:
            noted = {"held": held.hex(), "weights": self.sha256}
            self.session.save(save, notes={NOTE: noted})
        if not self.silent:
            sys.stdout.write("\n")
            sys.stdout.flush()

    def facts(self, seconds: float, save: Path | None) -> dict[str, Any]:
        return {
            "text": self.text,
            "tokens": self.made,
            "reason": self.reason,
            "seed": self.session.seed,
            "position": self.session.position,
            "seconds": round(seconds, 3),
            "tokens_per_second": round(self.count / seconds, 1) if seconds > 0 else None,
            "state": None if save is None else str(save),
        }

    def _say(self, token: int) -> None:
        self.count += 1
        if self.silent:  # an endless text is not kept
            self.made.append(token)
        self._show(self.decoder.decode(self.tokenizer.decode_bytes([token])))

    def _show(self, text: str) -> None:
        if self.silent:
            self.text += text
        else:
            sys.stdout.write(text)
            sys.stdout.flush()

    def _stops(self, stops: list[str]) -> list[list[int]]:
        found = [self.tokenizer.encode(text).tolist() for text in stops]
        for text, tokens in zip(stops, found, strict=True):
            if not tokens:
                raise ThreefoldError(f"--stop {text!r}: expected at least one character")
        return found

    def _restored(
        self, path: Path, model: Any, drawn: dict[str, Any], seed: int | None
    ) -> tuple[Session, bytes]:
        """The session of a file and the part of a character it ended with; options given win."""
        from dataclasses import replace

        from threefold.runtime.session import Session
        from threefold.runtime.state_files import read_state

        found = read_state(path)
        session = Session.restored(path, found, model, seed=seed)
        noted = found.notes.get(NOTE) or found.notes.get("stream") or {}
        theirs = noted.get("weights", self.sha256)
        if theirs != self.sha256:
            raise ThreefoldError(
                f"{path}: a state of other weights (SHA-256 {theirs[:12]}, those of {self.folder} "
                f"are {self.sha256[:12]}); give the model that it was written with"
            )
        session.sampling = replace(session.sampling, **drawn)
        return session, bytes.fromhex(noted.get("held", ""))


def writing(model: Any, folder: str) -> Any:
    """The model, if it writes text."""
    from threefold.models.language import LanguageModel

    if not isinstance(model, LanguageModel):
        raise ThreefoldError(
            f"{folder}: a {model.kind} model does not write text; expected a language model "
            "(threefold stream runs forecasters, taggers and classifiers)"
        )
    if model.tokenizer is None:
        raise ThreefoldError(
            f"{folder}: the model was saved without a tokenizer, so its tokens are no text; set "
            "model.tokenizer and save it again"
        )
    return model
