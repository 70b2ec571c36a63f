"""`threefold generate`: continue a text with a language model, from a prompt or a saved state."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from threefold.cli import options, output
from threefold.cli.stream import Model, load_model
from threefold.errors import ThreefoldError

if TYPE_CHECKING:
    from threefold.models.saving import OpenedModel
    from threefold.runtime.text_writer import TextWriter

DEFAULT_LIMIT = 200  # tokens

Prompt = Annotated[str | None, typer.Argument(help="Text to continue; - reads it from stdin.")]
MaxTokens = Annotated[
    int | None,
    typer.Option(min=1, show_default="200", help="Number of tokens to generate at most."),
]
Endless = Annotated[bool, typer.Option("--endless", help="Generate until a stop, or Ctrl-C.")]
Temperature = Annotated[
    float | None,
    typer.Option(show_default="1", help="0 always takes the most likely token."),
]
TopK = Annotated[int | None, typer.Option(min=1, help="Sample from the k most likely tokens.")]
TopP = Annotated[
    float | None,
    typer.Option(help="Sample from the most likely tokens with a total probability of p."),
]
MinP = Annotated[
    float | None,
    typer.Option(help="Sample from the tokens at least p times as likely as the likeliest one."),
]
RepetitionPenalty = Annotated[
    float | None,
    typer.Option(
        show_default="1", help="Above 1: tokens that have occurred before become less likely."
    ),
]
Stops = Annotated[
    list[str] | None, typer.Option(metavar="TEXT", help="Stop after this text. May be repeated.")
]
Seed = Annotated[int | None, typer.Option(help="The same seed gives the same text.")]
BeamCount = Annotated[
    int | None,
    typer.Option(min=1, help="Find the most likely text by beam search of this width."),
]
LengthPenalty = Annotated[float, typer.Option(help="With --beams: above 0 favours longer texts.")]
StateIn = Annotated[Path | None, typer.Option(help="Continue from this state file.")]
StateOut = Annotated[
    Path | None, typer.Option(help="Save the state after the text to this file, to continue later.")
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print text, tokens and speed as JSON, at the end.")
]


def generate(
    model: Model,
    prompt: Prompt = None,
    max_tokens: MaxTokens = None,
    endless: Endless = False,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    repetition_penalty: RepetitionPenalty = None,
    stop: Stops = None,
    seed: Seed = None,
    beams: BeamCount = None,
    length_penalty: LengthPenalty = 0.0,
    state: StateIn = None,
    save_state: StateOut = None,
    weights: options.Weights = None,
    as_json: AsJson = False,
    plugins: options.Plugins = None,
) -> None:
    """Continue a text, token by token; the state can be saved and continued later."""
    sampling = chosen(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
    )
    limit = token_limit(max_tokens, endless, beams)
    check_beams(beams, length_penalty, sampled=bool(sampling) or seed is not None)
    from threefold.runtime.interrupts import Interrupts

    writer = open_writer(load_model(model, save_state, weights), sampling, seed, state)
    read_prompt(writer, prompt)
    generated = GeneratedText(keep=as_json)
    with Interrupts() as interrupts:
        if beams is None or limit is None:
            pieces = writer.generate(limit, stop or [], lambda: interrupts.asked)
        else:
            pieces = writer.search(limit, beams, length_penalty, stop or [])
        for token, text in pieces:
            generated.add(token, text)
    generated.finish(writer, save_state)
    if interrupts.asked:
        report_interruption(model, save_state)


def chosen(**options: Any) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def token_limit(max_tokens: int | None, endless: bool, beams: int | None) -> int | None:
    """The number of tokens to generate at most; None: no limit."""
    if not endless:
        return DEFAULT_LIMIT if max_tokens is None else max_tokens
    if max_tokens is not None or beams is not None:
        other = "--beams" if max_tokens is None else f"--max-tokens {max_tokens}"
        raise ThreefoldError(f"--endless has no limit, but {other} needs one; leave out one")
    return None


def check_beams(beams: int | None, length_penalty: float, *, sampled: bool) -> None:
    """Refuse options of sampling together with a beam search, and the other way round."""
    if beams is not None and sampled:
        raise ThreefoldError(
            "--beams finds the most likely text and does not sample; leave out --temperature, "
            "--top-k, --top-p, --min-p, --repetition-penalty and --seed"
        )
    if beams is None and length_penalty:
        raise ThreefoldError(f"--length-penalty {length_penalty} is only used with --beams")


def open_writer(
    opened: OpenedModel, sampling: dict[str, Any], seed: int | None, state: Path | None
) -> TextWriter:
    """A writer, with the state if there is one."""
    from threefold.runtime.text_writer import TextWriter

    return TextWriter(opened, sampling=sampling, seed=seed, state_path=state)


def read_prompt(writer: TextWriter, prompt: str | None) -> None:
    """Read the prompt, if there is one."""
    if prompt == "-":
        writer.read_prompt(output.stdin_bytes(), "stdin")
    elif prompt:
        writer.read_prompt(prompt)
    elif not writer.has_context:
        raise ThreefoldError(
            "nothing to continue; give a PROMPT, - for standard input, or --state with a file "
            "that --save-state wrote"
        )


class GeneratedText:
    """The generated text: printed as it comes, or kept and printed as JSON at the end."""

    def __init__(self, keep: bool) -> None:
        self.keep = keep  # an endless text is printed, never kept
        self.tokens: list[int] = []
        self.texts: list[str] = []
        self.start = time.monotonic()

    def add(self, token: int, text: str) -> None:
        """Take the next token and the text that it completes."""
        if self.keep:
            self.tokens.append(token)
        self._add_text(text)

    def finish(self, writer: TextWriter, save_state: Path | None) -> None:
        """Save the state or complete the text, and print what is left to print."""
        if save_state is None:
            self._add_text(writer.finish())
        else:
            writer.save(save_state)
        if self.keep:
            output.say_json(self._summary(writer, save_state))
        else:
            sys.stdout.write("\n")
            sys.stdout.flush()

    def _add_text(self, text: str) -> None:
        if self.keep:
            self.texts.append(text)
        else:
            sys.stdout.write(text)
            sys.stdout.flush()

    def _summary(self, writer: TextWriter, save_state: Path | None) -> dict[str, Any]:
        seconds = time.monotonic() - self.start
        return {
            "text": "".join(self.texts),
            "tokens": self.tokens,
            "finish_reason": writer.finish_reason,
            "seed": writer.session.seed,
            "position": writer.session.position,
            "seconds": round(seconds, 3),
            "tokens_per_second": round(writer.count / seconds, 1) if seconds > 0 else None,
            "state": None if save_state is None else str(save_state),
        }


def report_interruption(model: str, save_state: Path | None) -> None:
    """Print how to continue, and exit."""
    if save_state is None:
        hint = "Nothing was saved. Use --save-state FILE to be able to continue."
    else:
        words = ["threefold", "generate", model, "--state", str(save_state)]
        hint = f"Continue with: {shlex.join(words)}"
    print(f"Stopped. {hint}", file=sys.stderr)
    raise typer.Exit(output.INTERRUPTED)
