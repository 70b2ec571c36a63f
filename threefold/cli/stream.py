"""`threefold stream`: score an input of any length with a model, in constant memory."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from threefold.cli import output
from threefold.errors import ThreefoldError

if TYPE_CHECKING:
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
        help="What to compute for each element: likelihood (default), predict (what comes next) "
        "or anomaly (how unusual it is)."
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output", help="Write the scores to this .jsonl or .csv file.  [default: stdout]"
    ),
]
Format = Annotated[
    str | None,
    typer.Option("--format", help="jsonl or csv, if the file name does not have such a suffix."),
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
        help="Elements per output row: a row has the sum of the likelihoods, the last prediction "
        "or the highest anomaly score of its group.  [default: 1]",
    ),
]
TopK = Annotated[
    int | None,
    typer.Option(
        min=1, help="Number of tokens or classes that --mode predict lists.  [default: 1]"
    ),
]
Window = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Elements to average over for --mode anomaly; older ones fade.  [default: all]",
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
        help="Elements computed together; 1 scores each element as soon as it arrives, more are "
        "faster.  [default: chosen for the model]",
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print a summary as JSON; scores go only to --output.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print no progress and no summary.")]


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
) -> None:
    """Score every element of a text or a table of any length, as it arrives."""
    check_different(None if file == "-" else Path(file), output_path, state)
    from threefold.data.atomic_files import check_place
    from threefold.kernels.system_memory import keep_memory
    from threefold.models.saving import open_model
    from threefold.runtime.interrupts import Interrupts
    from threefold.runtime.scores.files import choose_format
    from threefold.runtime.stream_job import StreamJob

    settings: dict[str, Any] = {
        "mode": mode,
        "group_size": group_size,
        "top_k": top_k,
        "window": window,
        "chunk_size": chunk_size,
    }
    names = None if columns is None else [name.strip() for name in columns.split(",")]
    chosen_format = choose_format(output_path, file_format)
    if state is not None:
        check_place(state)
    keep_memory()
    opened = open_model(model)
    with Interrupts() as interrupts:
        source: Any = output.stdin_bytes() if file == "-" else file
        requested = {**settings, "columns": names}
        job = StreamJob.open(opened, source, requested, state, interrupts.wait)
        if output_path is not None or not as_json:
            job.open_output(output_path, chosen_format)
        if not quiet:
            warn_of_growth(opened.model)
        run(job, interrupts, quiet)
    options = {**settings, "columns": columns, "output": output_path, "format": file_format}
    report(job, as_json, quiet, resume_command(model, file, {**options, "state": state}))


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
    from threefold.cli.progress import Meter

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
