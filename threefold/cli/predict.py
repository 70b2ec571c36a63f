"""`threefold predict` and `threefold forecast`: use a trained model on new data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from threefold.cli import options, output
from threefold.errors import ThreefoldError

if TYPE_CHECKING:
    from threefold.models.model import Model
    from threefold.runtime.answers import Answers

MOST_ROWS_SHOWN = 50  # on a terminal
MOST_CLASSES_SHOWN = 5  # with their probabilities
MOST_INPUTS_SHOWN = 8  # columns of the user's table beside the answers
MOST_SHOWN = 40  # characters of a cell on a terminal
ModelFolder = Annotated[
    Path, typer.Argument(metavar="MODEL", help="Folder of a run or of a saved model.")
]
Inputs = Annotated[
    list[str],
    typer.Argument(
        metavar="INPUT…",
        help="Texts, files or folders; - reads lines of standard input.",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", help="Write the answers to this new file: .csv or .jsonl."),
]
Attention = Annotated[
    Path | None,
    typer.Option(help="Draw where the model looks at its one input to this file, e.g. an SVG."),
]
BatchSize = Annotated[int, typer.Option(min=1, help="Inputs that are computed together.")]
Horizon = Annotated[int | None, typer.Option(min=1, help="Steps to forecast; default: as trained.")]
Plot = Annotated[Path | None, typer.Option(help="Draw history and forecast to this file, an SVG.")]


def predict(
    model: ModelFolder,
    inputs: Inputs,
    output_file: Output = None,
    batch_size: BatchSize = 32,
    attention: Attention = None,
    plugins: options.Plugins = None,
    as_json: options.AsJson = False,
) -> None:
    """Answer new inputs with a trained model: labels, numbers, tags, texts or forecasts.

    Texts are given as arguments, one per line in a file, or in a table with the column that the
    model was trained on; sounds, images and series as files.
    """
    check_output(output_file)
    check_new_file(attention)
    network = _load(model)
    values = read_arguments(network, inputs)
    if attention is not None:
        _draw_attention(network, values, attention)
    answers = _answers(network, values, batch_size)
    write_answers(answers, output_file, as_json)


def _answers(model: Model, values: list[Any], batch_size: int) -> Answers:
    """The answers; a signal ends the command after the batch that is being computed."""
    from threefold.runtime.interrupts import Interrupts
    from threefold.runtime.prediction import predict as answer

    with Interrupts() as interrupts, output.progress_bar("predicting") as show:

        def on_progress(done: int, total: int) -> None:
            show(done, total)
            interrupts.check(f"after {done:,} of {total:,} inputs; nothing was written")

        return answer(model, values, batch_size=batch_size, on_progress=on_progress)


def forecast(
    model: ModelFolder,
    history: Annotated[
        str, typer.Argument(metavar="FILE", help="Table with the values so far; - for stdin.")
    ],
    horizon: Horizon = None,
    future: Annotated[
        Path | None,
        typer.Option(help="Table with the known inputs of the rows to forecast (--known-future)."),
    ] = None,
    output_file: Output = None,
    plot: Plot = None,
    plugins: options.Plugins = None,
    as_json: options.AsJson = False,
) -> None:
    """Forecast the values after the last row of a table, in original units."""
    from threefold.runtime.prediction import predict as answer

    check_output(output_file)
    check_new_file(plot)
    if plot is not None and plot.suffix.lower() != ".svg":
        raise ThreefoldError(f"{plot}: unknown format; expected a name that ends in .svg")
    network = _load(model)
    if network.kind != "forecaster":
        raise ThreefoldError(
            f"{model}: a {network.kind} model cannot forecast; use `threefold predict {model} …`"
        )
    table = _read_history(history)
    later = None if future is None else _read_history(str(future))
    answers = answer(network, table, horizon=horizon, future=later)
    write_answers(answers, output_file, as_json)
    if plot is not None:
        _draw(network, table, answers, plot)


def _load(folder: Path) -> Model:
    from threefold.kernels.system_memory import keep_memory
    from threefold.models.saving import load

    keep_memory()
    return load(folder)


def _read_history(history: str) -> Any:
    if history != "-":
        path = Path(history)
        if not history:
            raise ThreefoldError("FILE is empty; expected the name of a table, or - for stdin")
        if not path.exists():
            raise ThreefoldError(f"{path}: file not found")
        return path
    return output.stdin_bytes().read()


def read_arguments(model: Model, inputs: list[str]) -> list[Any]:
    """Arguments as texts or paths: what exists is a file, - the lines of standard input."""
    values: list[Any] = []
    for number, text in enumerate(inputs, 1):
        if not text:  # Path("") would be the current folder
            raise ThreefoldError(f"input {number} is empty; expected a text, a file or a folder")
        if text == "-":
            values += _read_stdin(model)
        elif _is_existing(text):
            values.append(Path(text))
        elif _reads_text(model) and not _looks_like_a_file(text):
            values.append(text)
        else:
            raise ThreefoldError(f"{text}: file or folder not found")
    return values


def _read_stdin(model: Model) -> list[Any]:
    """The lines of standard input as texts, or all of it as a table."""
    from threefold.data.readers import decode_text
    from threefold.data.tables import read_table

    content = output.stdin_bytes().read()
    if _reads_text(model):
        return [line for line in decode_text(content, "-").splitlines() if line.strip()]
    known = model.preprocessing
    assert known is not None  # a model without preprocessing reads text
    header, usual = known.has_header, known.decimal
    return [read_table(content, header=header, usual_decimal=usual, of_model=True)]


def _is_existing(text: str) -> bool:
    try:
        return Path(text).exists()
    except OSError:  # too long for a name
        return False


def _reads_text(model: Model) -> bool:
    preprocessing = model.preprocessing
    return preprocessing is None or preprocessing.form in ("text", "file", "words")


def _looks_like_a_file(text: str) -> bool:
    suffix = Path(text).suffix if " " not in text else ""
    return suffix.lower() in (".csv", ".tsv", ".jsonl", ".txt", ".parquet", ".xlsx", ".wav", ".png")


def check_output(path: Path | None) -> None:
    """Refuse a file that exists, or whose format is unknown, before any work is done."""
    from threefold.runtime.answers import check_format

    check_new_file(path)
    if path is not None:
        check_format(path)


def check_new_file(path: Path | None) -> None:
    """Refuse to overwrite a file, before any work is done."""
    if path is not None and path.exists():
        raise ThreefoldError(f"{path}: exists already; choose another name, or delete it")
    if path is not None and not path.parent.is_dir():
        raise ThreefoldError(f"{path.parent}: no such folder")


def write_answers(answers: Answers, path: Path | None, as_json: bool) -> None:
    """Print answers as a table or JSON, or write them to a file."""
    for note in answers.notes:
        output.note(note)
    if path is not None:
        from threefold.runtime.answers import write_answers as write

        write(answers, path)
    if as_json:
        output.say_json(answers.to_json())
    elif path is not None:
        output.say(f"{len(answers):,} answers in {path}")
    else:
        _show(answers)


def _show(answers: Answers) -> None:
    from threefold.runtime.answers import PROBABILITY

    rows = answers.table()
    header = list(dict.fromkeys(name for row in rows for name in row))
    classes = [name for name in header if name.startswith(PROBABILITY)]
    hidden = classes if len(classes) > MOST_CLASSES_SHOWN else []
    cells = {name: [_cell(row.get(name, "")) for row in rows[:MOST_ROWS_SHOWN]] for name in header}
    own = dict.fromkeys(name for columns in answers.columns for name in columns)
    visible = [name for name in header if name not in hidden]
    if len(own) > MOST_INPUTS_SHOWN or not _fits(visible, cells):
        hidden += [name for name in own if name in header]
    shown = [name for name in header if name not in hidden]
    output.say_table(shown, list(zip(*(cells[name] for name in shown), strict=True)))
    more = [f"{len(rows) - MOST_ROWS_SHOWN:,} rows"] if len(rows) > MOST_ROWS_SHOWN else []
    more += [f"{len(hidden):,} columns"] if hidden else []
    if more:
        output.say(f"… and {' and '.join(more)} more (--output FILE writes all)")


def _fits(names: list[str], cells: dict[str, list[str]]) -> bool:
    """Whether columns fit the terminal."""
    widths = [max(map(len, [name, *cells[name]])) + len(output.GAP) for name in names]
    width = output.columns()
    return width is None or sum(widths) <= width + len(output.GAP)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    text = f"{value:.6g}" if isinstance(value, float) else " ".join(str(value).split())
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 1]}…"


def _draw_attention(model: Model, values: list[Any], path: Path) -> None:
    from threefold.runtime.attention_weights import attention_weights

    attention_weights(model, values).draw(path)
    output.note(f"attention weights drawn to {path}")


def _draw(model: Any, history: Any, answers: Answers, path: Path) -> None:
    from threefold.data.atomic_files import write_text
    from threefold.runtime.forecast_figure import draw_forecast

    write_text(path, draw_forecast(model.preprocessing, history, answers))
    output.note(f"history and forecast drawn to {path}")
