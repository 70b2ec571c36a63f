"""`threefold stream`: score an input of any length with a model, in constant memory."""

from __future__ import annotations

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
    typer.Argument(help="Text, or a table of numbers with one element per line; - reads stdin."),
]
Mode = Annotated[
    str | None,
    typer.Option(
        show_default="likelihood",
        help="What to compute for each element: likelihood, predict (what comes next) or anomaly "
        "(how unusual it is).",
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
GroupSize = Annotated[
    int | None,
    typer.Option(
        min=1,
        show_default="1",
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
        show_default="all",
        help="With --mode anomaly: compare with about this many elements before.",
    ),
]
TableColumns = Annotated[
    str | None,
    typer.Option(help="Columns of a table to read, by name or number, separated by commas."),
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


def stream(
    model: Model,
    file: File = "-",
    mode: Mode = None,
    output_path: Output = None,
    file_format: Format = None,
    state: StateFile = None,
    group_size: GroupSize = None,
    top_k: TopK = None,
    window: Window = None,
    columns: TableColumns = None,
    chunk_size: ChunkSize = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    plugins: options.Plugins = None,
) -> None:
    """Score every element of a text or a table of any length, as it arrives."""
    check_different(None if file == "-" else Path(file), output_path, state)
    from threefold.runtime.interrupts import Interrupts
    from threefold.runtime.scores.files import choose_format

    chosen_format = choose_format(output_path, file_format)
    options: dict[str, Any] = {
        "mode": mode,
        "group_size": group_size,
        "top_k": top_k,
        "window": window,
        "columns": columns,
        "chunk_size": chunk_size,
    }
    opened = load_model(model, state)
    with Interrupts() as interrupts:
        job = open_job(opened, file, options, state, interrupts)
        if output_path is not None or not as_json:
            job.open_output(output_path, chosen_format)
        if not quiet:
            warn_of_growth(opened.model)
        run(job, interrupts, quiet)
    options |= {"output": output_path, "format": file_format, "state": state}
    report(job, as_json, quiet, resume_command(model, file, options))


def load_model(folder: str, state: Path | None) -> OpenedModel:
    """Load a model, after checking that its state can be saved to a file."""
    from threefold.data.atomic_files import check_writable
    from threefold.kernels.system_memory import keep_memory
    from threefold.models.saving import open_model

    if state is not None:
        check_writable(state)
    keep_memory()
    return open_model(folder)


def open_job(
    opened: OpenedModel,
    file: str,
    options: dict[str, Any],
    state: Path | None,
    interrupts: Interrupts,
) -> StreamJob:
    """Open the input, at its beginning or where the state file stopped."""
    from threefold.runtime.stream_job import StreamJob

    source: Any = output.stdin_bytes() if file == "-" else file
    columns = options["columns"]
    names = None if columns is None else [name.strip() for name in columns.split(",")]
    settings = {**options, "columns": names}
    return StreamJob.open(opened, source, settings, state, interrupts.wait)


def check_different(*paths: Path | None) -> None:
    """Refuse the same file in two roles: writing it would destroy what is read."""
    seen: set[Path] = set()
    for path in paths:
        if path is None:
            continue
        if path.resolve() in seen:
            raise ThreefoldError(
                f"{path}: given twice; the input, --output and --state must be different files"
            )
        seen.add(path.resolve())


def warn_of_growth(model: Any) -> None:
    """Print a note if memory is not constant, as with attention, which stores what it has read."""
    growth = (model.state_size(1 << 16) - model.state_size(1 << 15)) >> 15
    if growth:
        note = f"Note: the state of this model grows by {growth:,} bytes with each element."
        print(note, file=sys.stderr)


def run(job: StreamJob, interrupts: Interrupts, quiet: bool) -> None:
    """Run a job to the end of its input or to an interruption, with a progress bar."""
    from threefold.data.progress import Meter

    source = job.stream.source
    printing = job.output is not None and job.output.path is None
    meter = Meter(source.size, source.offset, quiet, printing)
    try:
        job.run(
            should_stop=lambda: interrupts.asked,
            on_chunk=lambda: meter.show(source.bytes_read, job.elements),
        )
    finally:
        meter.close()


def report(job: StreamJob, as_json: bool, quiet: bool, command: str) -> None:
    """Print the summary, and how to continue a job that was interrupted."""
    summary = job.summary()
    if as_json:
        output.say_json(summary)
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
    parts += [f"scores in {summary['output']}"] if summary["output"] else []
    parts += [f"state in {summary['state']}"] if summary["state"] else []
    return ", ".join(parts)


def resume_command(model: str, file: str, options: dict[str, Any]) -> str:
    """The command line that continues a job: the same arguments and options again."""
    words = ["threefold", "stream", model, file]
    for name, value in options.items():
        if value is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join(words)
