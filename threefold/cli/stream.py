"""`threefold stream`: score an input of any length with a model, in constant memory."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from threefold.cli import options, output
from threefold.errors import ThreefoldError

if TYPE_CHECKING:
    from threefold.models.saving import OpenedModel
    from threefold.runtime.interrupts import Interrupts
    from threefold.runtime.stream_job import StreamJob

Model = Annotated[str, typer.Argument(help="Folder of a saved model or of a run.")]
File = Annotated[
    str,
    typer.Argument(
        help="Text, sound (WAV), or a table with one element per line (CSV or JSON lines, columns "
        "by name as in training); - reads stdin."
    ),
]
Mode = Annotated[
    str | None,
    typer.Option(
        show_default="likelihood if the model has one, else predict",
        help="What to compute for each element: likelihood, predict (what comes next, or the label "
        "so far) or anomaly (how unusual it is).",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output", show_default="stdout", help="Write the scores to this .jsonl or .csv file."
    ),
]
Format = Annotated[
    str | None,
    typer.Option("--format", help="jsonl or csv, if the name of --output does not say it."),
]
StateFile = Annotated[
    Path | None,
    typer.Option(
        help="Save the state to this file, regularly and at the end; resume from it if it exists."
    ),
]
ContinueWith = Annotated[
    str | None,
    typer.Option(
        show_default="same for a file",
        help="What the input is when a state is resumed: same (the same file, perhaps grown: its "
        "beginning is checked and skipped) or new (it holds only what follows, as a pipe does).",
    ),
]
GroupSize = Annotated[
    int | None,
    typer.Option(
        min=1,
        show_default="1, for sounds a tenth of a second",
        help="Elements per output row: a row has the sum of the log-likelihoods, the last "
        "prediction or the highest anomaly score of its group.",
    ),
]
TopK = Annotated[
    int | None,
    typer.Option(
        min=1, show_default="1", help="With --mode predict: number of tokens or classes listed."
    ),
]
Window = Annotated[
    int | None,
    typer.Option(
        min=1,
        show_default="no stretches",
        help="With --mode anomaly: also score stretches, by the mean over this many elements.",
    ),
]
Alarm = Annotated[
    float | None,
    typer.Option(
        metavar="RATE",
        help="Raise alarms, on this share of clean elements at most (such as 1e-3), and list them "
        "at the end; implies --mode anomaly.",
    ),
]
Calibrate = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        show_default="as calibrated before",
        help="With --alarm: a clean file to compare with; its scores are stored with the model.",
    ),
]
TableColumns = Annotated[
    str | None,
    typer.Option(
        show_default="those of training",
        help="Columns of a table to read, by name or number, separated by commas, in the order of "
        "the model's.",
    ),
]
Missing = Annotated[
    str | None,
    typer.Option(
        show_default="as trained",
        help="A missing or absurd number of a table: carry (repeat the column's last value), mask "
        "(also tell the model) or stop.",
    ),
]
Context = Annotated[
    str | None,
    typer.Option(
        show_default="as trained",
        help="Rows that each forecast reads: a number, or all (the state is carried on).",
    ),
]
SoundFormat = Annotated[
    str | None,
    typer.Option(
        show_default="WAV",
        help="Samples without a header, at the model's rate, in one channel: s16le, s32le or "
        "f32le.",
    ),
]
ChunkSize = Annotated[
    int | None,
    typer.Option(
        min=1,
        show_default="chosen for the model",
        help="Elements computed together: 1 scores each element as soon as it arrives, more are "
        "faster.",
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print a summary as JSON; scores go only to --output.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Do not print progress or the summary line.")]

SHOWN_ALARMS = 20
STREAM_SETTINGS = (
    *("mode", "group_size", "top_k", "window", "alarm", "calibrate", "context", "columns"),
    *("missing", "sound_format", "chunk_size"),
)


def stream(
    model: Model,
    file: File = "-",
    mode: Mode = None,
    output_path: Output = None,
    file_format: Format = None,
    state: StateFile = None,
    continue_with: ContinueWith = None,
    group_size: GroupSize = None,
    top_k: TopK = None,
    window: Window = None,
    alarm: Alarm = None,
    calibrate: Calibrate = None,
    context: Context = None,
    columns: TableColumns = None,
    missing: Missing = None,
    sound_format: SoundFormat = None,
    chunk_size: ChunkSize = None,
    weights: options.Weights = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    plugins: options.Plugins = None,
) -> None:
    """Score every element of a text, a table or a sound of any length, as it arrives.

    The columns of a table are found by name and scaled as in training; answers are in original
    units: flow+1 is the forecast one step after the row, flow+1_q0.1 its lowest decile.
    """
    settings = {name: value for name, value in locals().items() if name in STREAM_SETTINGS}
    check_different(None if file == "-" else file, calibrate, output_path, state)
    from threefold.runtime.interrupts import Interrupts
    from threefold.runtime.scores.files import choose_format

    chosen_format = choose_format(output_path, file_format)
    opened = load_model(model, state, weights)
    files = {"output": output_path, "format": file_format, "state": state}
    command = resume_command(model, file, settings | files)
    with Interrupts() as interrupts:
        job = open_job(opened, file, settings, state, continue_with, interrupts)
        store_calibration(opened, job, weights, quiet)
        if output_path is not None or not as_json:
            job.open_output(output_path, chosen_format)
        run(job, interrupts, quiet, command)
    report(job, as_json, quiet, command)


def load_model(folder: str, state: Path | None, weights: str | None = None) -> OpenedModel:
    """Load a model, after checking that its state can be saved to a file."""
    from threefold.data.atomic_files import check_writable
    from threefold.kernels.system_memory import keep_memory
    from threefold.models.saving import open_model
    from threefold.runtime.state_files import refuse_other_file

    if state is not None:
        check_writable(state)
        refuse_other_file(state)
    keep_memory()
    opened = open_model(folder)
    if weights is None:
        return opened
    from threefold.runtime.quantisation import quantize

    # A state belongs to the weights that made it.
    digest = f"{opened.sha256} in {weights}"
    return opened._replace(model=quantize(opened.model, weights), sha256=digest)


def open_job(
    opened: OpenedModel,
    file: str,
    options: dict[str, Any],
    state: Path | None,
    continue_with: str | None,
    interrupts: Interrupts,
) -> StreamJob:
    """Open the input, at its beginning or where the state file stopped."""
    from threefold.runtime.stream_job import StreamJob

    source: Any = output.stdin_bytes() if file == "-" else file
    columns = options["columns"]
    names = None if columns is None else [name.strip() for name in columns.split(",")]
    context = options["context"]
    settings = {**options, "columns": None if names is None else tuple(names)}
    settings["context"] = int(context) if context is not None and context.isdigit() else context
    return StreamJob.open(opened, source, settings, state, continue_with, interrupts.wait)


def store_calibration(
    opened: OpenedModel, job: StreamJob, weights: str | None, quiet: bool
) -> None:
    """Write a new calibration of alarms to the model's folder, for later streams."""
    calibration, is_new = opened.model.alarms, job.stream.settings.calibrate and not job.note
    if calibration is None or not is_new or weights is not None:  # of narrower weights: not its own
        return
    try:
        calibration.write(opened.folder)
    except ThreefoldError as error:
        output.note(f"alarms are calibrated for this stream only: {error}")
        return
    if not quiet:
        count = calibration.points.count
        output.note(f"alarms are calibrated on {count:,} elements, stored in {opened.folder}")


def check_different(*files: str | Path | None) -> None:
    """Refuse the same file in two roles: writing it would destroy what is read."""
    seen: set[Path] = set()
    for path in [Path(file) for file in files if file is not None]:
        if path.resolve() in seen:
            raise ThreefoldError(
                f"{path}: given twice; the input, --calibrate, --output and --state must be "
                "different files"
            )
        seen.add(path.resolve())


def warn_of_growth(job: StreamJob) -> None:
    """Print a note if memory is not constant, as with attention, which stores what it has read."""
    model: Any = job.stream.model
    from threefold.models.stream_limits import stream_warning

    if job.stream.settings.context != "all":
        return
    growth = (model.state_size(1 << 16) - model.state_size(1 << 15)) >> 15
    if growth:
        note = f"Note: the state of this model grows by {growth:,} bytes with each element."
        print(note, file=sys.stderr)
    warning = stream_warning(model)
    if warning:
        output.note(warning)


def run(job: StreamJob, interrupts: Interrupts, quiet: bool, command: str) -> None:
    """Run a job to the end of its input or to an interruption, with a progress bar."""
    from threefold.data.progress import Meter

    if not quiet:
        warn_of_growth(job)
    source = job.stream.source
    printing = job.output is not None and job.output.path is None
    meter = Meter(source.size, source.offset, quiet, printing)
    told: list[str] = []

    def on_chunk() -> None:
        ignored = getattr(source.encoder, "ignored", [])
        if ignored and not told and not quiet:
            told.extend(ignored)
            output.note(f"columns that the model does not read: {', '.join(ignored)}")
        meter.show(source.bytes_read, job.elements)

    try:
        job.run(should_stop=lambda: interrupts.asked, on_chunk=on_chunk)
    except KeyboardInterrupt:  # the second one
        stop_at_once(job, command)
    finally:
        meter.close()


def report(job: StreamJob, as_json: bool, quiet: bool, command: str) -> None:
    """Print the summary, and how to continue a job that was interrupted."""
    summary = job.summary()
    if as_json:
        output.say_json(summary)
    for note in summary.get("notes", []):
        output.note(note)
    if not quiet and "alarms" in summary:
        print("\n".join(alarm_lines(summary)), file=sys.stderr)
    if not quiet:
        print(summary_line(summary), file=sys.stderr)
    if summary["finished"]:
        return
    if job.state_path is None:
        hint = "Nothing was saved. Use --state FILE to be able to continue."
    else:
        hint = f"Continue with: {command}"
    print(f"Stopped at element {summary['position']:,}. {hint}", file=sys.stderr)
    raise typer.Exit(output.INTERRUPTED)


def stop_at_once(job: StreamJob, command: str) -> None:
    """Say what a second Ctrl-C leaves behind."""
    hint = "Nothing was saved."
    if job.state_path is not None and job.state_path.exists():
        hint = f"The state is the one that was saved last. Continue with: {command}"
    print(f"\nStopped at once. {hint}", file=sys.stderr)
    raise typer.Exit(output.INTERRUPTED)


def summary_line(summary: dict[str, Any]) -> str:
    """The summary as one line."""
    speed = summary["elements_per_second"] or 0
    elements, seconds = summary["elements"], summary["seconds"]
    parts = [f"{elements:,} elements in {seconds:.1f} s ({speed:,.0f} elements/s)"]
    if "bits_per_byte" in summary:
        parts.append(f"{summary['bits_per_byte']:.3f} bits per byte")
    elif "mean_log_likelihood" in summary:
        parts.append(f"mean log-likelihood {summary['mean_log_likelihood']:.4g} per element")
    if "highest_score" in summary:
        highest = summary["highest_score"]
        parts.append(f"highest score {highest['score']:.3g} at position {highest['position']:,}")
    if "alarm_count" in summary:
        parts.append(f"{summary['alarm_count']:,} alarms")
    parts += [f"scores in {summary['output']}"] if summary["output"] else []
    parts += [f"state in {summary['state']}"] if summary["state"] else []
    return ", ".join(parts)


def alarm_lines(summary: dict[str, Any]) -> list[str]:
    """The rates of alarms and the first alarms, a line for each."""
    rates, alarms = summary["alarm_rates"], summary["alarms"]
    lines = []
    for kind, rate in rates["this_stream"].items():
        held_out = rates["held_out"][kind]
        known = "too few to count" if held_out is None else f"{held_out:.3g}"
        lines.append(
            f"{kind} alarms: {rate:.3g} of the elements; asked for {rates['asked']:g}, on held-out "
            f"clean elements {known}"
        )
    for alarm in alarms[:SHOWN_ALARMS]:
        first, last = alarm["position"], alarm["last_position"]
        where = f"element {first:,}" + ("" if first == last else f" to {last:,}")
        names = ("series", "time", "seconds", "column", "text")
        told = [f"{name} {alarm[name]}" for name in names if alarm.get(name) not in (None, "")]
        kind = alarm["kind"]
        lines.append(f"  {', '.join([where, *told])}: {kind}, p {alarm['p_value']:.2g}")
    if summary["alarm_count"] > SHOWN_ALARMS:
        lines.append(f"  and {summary['alarm_count'] - SHOWN_ALARMS:,} more")
    return lines


def resume_command(model: str, file: str, options: dict[str, Any]) -> str:
    """The command line that continues a job: the same arguments and options again."""
    words = ["threefold", "stream", model, file]
    for name, value in options.items():
        if value is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    return " ".join(map(_shell_word, words))


def _shell_word(word: str) -> str:
    """A word for a shell; a name that is not UTF-8 by the numbers of its bytes."""
    try:
        word.encode()
        return shlex.quote(word)
    except UnicodeEncodeError:
        data = os.fsencode(word)
        signs = (chr(b) if 32 <= b < 127 and b not in b"'\\" else f"\\x{b:02x}" for b in data)
        return f"$'{''.join(signs)}'"
