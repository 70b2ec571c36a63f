"""The typer application: the list of commands, and what happens to errors."""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from threefold.cli import (
    bench,
    compare,
    config,
    data,
    demo,
    doctor,
    evaluate,
    generate,
    info,
    lab,
    lab_defaults,
    lab_fine_tuning,
    lab_streams,
    merge,
    mixers,
    output,
    predict,
    runs,
    stream,
    tables,
    tasks,
    train,
    words,
)
from threefold.cli.hints import Commands, HintedCommand
from threefold.errors import OtherProcessFailedError, ThreefoldError, command_line

app = typer.Typer(
    name="threefold",
    cls=Commands,
    help="Neural sequence models, from the RNN to Mamba, that run step by step, in chunks and in "
    "parallel, with the same results.",
    no_args_is_help=True,
    add_completion=False,
    # Plain help: rich would double the time until the first line appears.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    compare.compare,
    train.train,
    train.resume,
    evaluate.evaluate,
    predict.predict,
    predict.forecast,
    generate.generate,
    merge.merge,
    stream.stream,
    mixers.mixers,
    tasks.tasks,
    config.config,
    info.info,
    doctor.doctor,
    bench.bench,
    tables.tables,
    demo.demo,
):
    app.command(cls=HintedCommand)(command)
app.add_typer(runs.runs)
app.add_typer(data.data)
app.add_typer(words.words)
lab.lab.command("fine-tuning")(lab_fine_tuning.fine_tuning)
lab.lab.command()(lab_streams.alarms)
lab.lab.command()(lab_defaults.defaults)
lab.lab.command()(lab_streams.streams)
app.add_typer(lab.lab)


def _print_version(wanted: bool) -> None:
    if wanted:
        from threefold import __version__

        output.say(f"threefold {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Options before the command."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; always raises SystemExit."""
    output.tolerate_closed_streams()
    output.tolerate_narrow_encodings()
    try:
        try:
            given = list(sys.argv[1:] if arguments is None else arguments)
            with command_line():
                app(args=given, prog_name="threefold", obj=given)
        finally:
            sys.stdout.flush()
    except OSError as error:
        output.leave_stdout()
        if error.errno == errno.EPIPE:  # the reader of a pipe has closed it
            sys.exit(1)
        output.complain(f"{error.filename or 'standard output'}: {error.strerror or error}")
        sys.exit(2)
    except ThreefoldError as error:
        output.complain(str(error))
        sys.exit(output.OTHER_PROCESS_FAILED if isinstance(error, OtherProcessFailedError) else 2)
