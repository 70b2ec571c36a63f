"""`threefold stream`: a model on an input of any length, in constant memory."""

from __future__ import annotations

import shlex
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from threefold.cli import output
from threefold.errors import ThreefoldError

if TYPE_CHECKING:
    from threefold.runtime.scores.files import ScoreFile
    from threefold.runtime.scores.totals import Totals
    from threefold.runtime.streaming import ScoreStream

SAVE = 30.0  # seconds between states: what a crash may cost
INTERRUPTED = 130


Model = Annotated[str, typer.Argument(help="A saved model, or the folder of a run.")]
File = Annotated[
    str, typer.Argument(help="Text, or a table of numbers with one element a line; - is stdin.")
]
What = Annotated[str | None, typer.Option(help="likelihood (unless given), predict or anomaly.")]
Out = Annotated[
    Path | None, typer.Option("--output", help="A .jsonl or .csv file; stdout unless given.")
]
Format = Annotated[
    str | None, typer.Option("--format", help="jsonl or csv, if the name does not say.")
]
StateFile = Annotated[
    Path | None,
    typer.Option(help="Go on from this file if it is there; it is written on the way, at the end."),
]
Every = Annotated[int | None, typer.Option(min=1, help="Elements that one line stands for.")]
Top = Annotated[int | None, typer.Option(min=1, help="Tokens or classes that predict names.")]
Window = Annotated[
    int | None, typer.Option(min=1, help="Elements that the usual surprise is taken over.")
]
TableColumns = Annotated[
    str | None, typer.Option(help="Columns of a table, by name or number, with commas.")
]
Piece = Annotated[
    int | None, typer.Option(min=1, help="Elements computed together; 1 answers each at once.")
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print a summary as JSON; scores only to --output.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Say nothing on the way.")]


def stream(
    model: Model,
    file: File = "-",
    what: What = None,
    out: Out = None,
    kind: Format = None,
    state: StateFile = None,
    every: Every = None,
    top: Top = None,
    window: Window = None,
    columns: TableColumns = None,
    piece: Piece = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Score every element of a text or a table, of any length, as it comes."""
    distinct(None if file == "-" else Path(file), out, state)
    asked: dict[str, Any] = {
        "what": what,
        "every": every,
        "top": top,
        "window": window,
        "piece": piece,
        "columns": None if columns is None else [name.strip() for name in columns.split(",")],
    }
    from threefold.data.atomic_files import check_writable
    from threefold.kernels.system_memory import keep_memory
    from threefold.runtime.interrupts import Interrupts
    from threefold.runtime.opening import open_model
    from threefold.runtime.scores.files import format_of

    chosen = format_of(out, kind)
    if state is not None:
        check_writable(state)
    keep_memory()
    opened = open_model(model)
    with Interrupts() as interrupts:
        run = Run.begin(opened, file, asked, state, interrupts)
        run.open_output(out, chosen, silent=as_json and out is None)
        if not quiet:
            warn(opened.model)
        facts = run.go(quiet)
    finish(facts, run, as_json, quiet, shlex.join(["threefold", *command(locals())]))


def distinct(*paths: Path | None) -> None:
    """Refuse one file in two roles: what is written would destroy what is read."""
    seen: set[Path] = set()
    for path in paths:
        place = None if path is None else path.resolve()
        if place is not None and place in seen:
            raise ThreefoldError(
                f"{path}: given twice; input, --output and --state are three files"
            )
        seen |= set() if place is None else {place}


class Run:
    """One run of the command: the stream, where its lines go, and the state file."""

    output: ScoreFile | None = None

    def __init__(
        self, made: ScoreStream, state: Path | None, interrupts: Any, weights: str
    ) -> None:
        self.stream, self.state, self.interrupts = made, state, interrupts
        self.weights = weights
        self.totals: Totals
        self.noted: dict[str, Any] = {}  # of the state that it went on from
        self.first = made.session.position

    @classmethod
    def begin(
        cls, opened: Any, file: str, asked: dict[str, Any], state: Path | None, interrupts: Any
    ) -> Run:
        """Open the input, at its beginning or where the state stands."""
        from threefold.runtime import streaming
        from threefold.runtime.scores.totals import Totals
        from threefold.runtime.state_files import read_state

        source: Any = output.typed() if file == "-" else file
        there = state if state is not None and state.exists() else None
        noted: dict[str, Any] = {}
        made = streaming.stream(opened.model, source, **asked, state=there, wait=interrupts.wait)
        if there is not None:
            noted = read_state(there).notes[streaming.NOTE]
            if noted.get("weights", opened.sha256) != opened.sha256:
                raise ThreefoldError(
                    f"{there}: a state of other weights (SHA-256 {noted['weights'][:12]}, those of "
                    f"{opened.folder} are {opened.sha256[:12]}); give the model that it was "
                    "written with, or another state file"
                )
        run = cls(made, state, interrupts, opened.sha256)
        run.noted, run.totals = noted, Totals(noted.get("totals"))
        return run

    def open_output(self, path: Path | None, kind: str, silent: bool) -> None:
        """The file of the scores, cut back to what it had when the state was written."""
        from threefold.runtime.scores.files import ScoreFile

        if silent:
            return
        before = self.noted.get("output") or {}
        same = path is not None and before.get("path") == str(path.resolve())
        if same and before["format"] != kind:
            raise ThreefoldError(
                f"{path}: was begun as {before['format']}, and now it is {kind}; leave --format out"
            )
        self.output = ScoreFile(path, kind, before["size"] if same else None)

    def go(self, quiet: bool) -> dict[str, Any]:
        """To the end of the input, or until somebody interrupts; what it came to."""
        from threefold.data.progress import Meter
        from threefold.runtime.source import WaitInterruptedError

        source, session = self.stream.source, self.stream.session
        printing = self.output is not None and self.output.path is None
        meter = Meter(source.size, source.offset, quiet, printing)
        start = saved = time.monotonic()
        try:
            while not self.interrupts.asked:
                try:
                    scores = next(self.stream, None)
                except WaitInterruptedError:
                    break
                if scores is None:
                    break
                self.totals.add(scores.columns)
                if self.output is not None:
                    self.output.write(scores.columns)
                meter.show(source.position, session.position - self.first)
                if time.monotonic() - saved > SAVE:
                    self.save()
                    saved = time.monotonic()
        except ThreefoldError:
            with suppress(ThreefoldError):  # all pieces before it count
                self.save()
            raise
        finally:
            meter.close()
        self.save()
        source.close()
        if self.output is not None:
            self.output.close()
        return self.facts(time.monotonic() - start)

    def save(self) -> None:
        """Lines first, then the state that counts them."""
        written = None
        if self.output is not None:
            self.output.sync()
            path = self.output.path
            written = {
                "path": None if path is None else str(path.resolve()),
                "size": self.output.size,
                "format": self.output.kind,
            }
        if self.state is not None:
            self.stream.save(
                self.state, weights=self.weights, output=written, totals=self.totals.carried()
            )

    def facts(self, seconds: float) -> dict[str, Any]:
        session, settings = self.stream.session, self.stream.settings
        elements = session.position - self.first
        size = None if self.stream.parts is None else self.stream.bytes
        scored = None if size is None else size - self.stream.unscored
        written = None if self.output is None else self.output.path
        return {
            "input": self.stream.source.name,
            "what": settings.what,
            "finished": self.stream.ended,
            "position": session.position,
            "elements": elements,
            "bytes": size,
            "seconds": round(seconds, 3),
            "elements_per_second": round(elements / seconds, 1) if seconds > 0 else None,
            "state_bytes": session.state_bytes,
            "output": None if written is None else str(written),
            "state": None if self.state is None else str(self.state),
            **self.totals.facts(scored),
        }


def warn(model: Any) -> None:
    """Say it where memory is not constant: attention keeps what it has read."""
    grows = (model.state_size(1 << 16) - model.state_size(1 << 15)) >> 15
    if grows:
        note = f"note: the state of this model grows by {grows:,} bytes with every element"
        print(note, file=sys.stderr)


def finish(facts: dict[str, Any], run: Run, as_json: bool, quiet: bool, command: str) -> None:
    """Tell what came of it, and how to go on if it is not the end."""
    if as_json:
        output.say_json(facts)
    if not quiet:
        print(sentence(facts), file=sys.stderr)
    if facts["finished"]:
        return
    if run.state is None:
        hint = "nothing was kept to go on from: --state FILE does that"
    else:
        hint = f"go on with: {command}"
    print(f"stopped at element {facts['position']:,}; {hint}", file=sys.stderr)
    raise typer.Exit(INTERRUPTED)


def sentence(facts: dict[str, Any]) -> str:
    """The summary as one line."""
    rate = facts["elements_per_second"] or 0
    parts = [f"{facts['elements']:,} elements in {facts['seconds']:.1f} s ({rate:,.0f} a second)"]
    if "bits_per_byte" in facts:
        parts.append(f"{facts['bits_per_byte']:.3f} bits a byte")
    elif "mean_log_likelihood" in facts:
        parts.append(f"log-likelihood {facts['mean_log_likelihood']:.4g} an element")
    if "highest_score" in facts:
        highest = facts["highest_score"]
        parts.append(f"highest score {highest['score']:.3g} at {highest['position']:,}")
    parts += [f"scores in {facts['output']}"] if facts["output"] else []
    parts += [f"state in {facts['state']}"] if facts["state"] else []
    return ", ".join(parts)


def command(given: dict[str, Any]) -> list[str]:
    """The arguments that were given, as they are typed."""
    words = ["stream", given["model"], given["file"]]
    names = {"out": "output", "kind": "format"}
    for name in ("what", "out", "kind", "state", "every", "top", "window", "columns", "piece"):
        if given[name] is not None:
            words += [f"--{names.get(name, name)}", str(given[name])]
    return words
