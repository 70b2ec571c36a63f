"""Commands that say what to use in place of an unknown option, and how to go on when stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from threefold.cli import output, stopped_text
from threefold.errors import ThreefoldError

# By the option that was typed: words of other libraries, and of other commands.
INSTEAD = {
    "--lr": ("--learning-rate",),
    "--mixer": ("--mixers",),
    "--model": ("--mixers",),
    "--minutes": ("--time",),
    "--seconds": ("--time",),
    "--budget": ("--time",),
    "--epochs": ("--steps", "--time"),
    "--max-steps": ("--steps", "--time"),
    "--batch": ("--batch-size", "--set data.batch_size=16"),
    "--batch-size": ("--set data.batch_size=16",),
    "--length": ("--set data.length=512",),
    "--width": ("--set model.width=64",),
    "--depth": ("--set model.depth=2",),
    "--dropout": ("--set model.options={dropout=0.1}",),
    "--optimizer": ("--set training.optimizer=adamw",),
    "--output-dir": ("--folder",),
    "--what": ("--mode",),
    "--every": ("--group-size",),
    "--piece": ("--chunk-size",),
    "--top": ("--top-k",),
    "--tokens": ("--max-tokens",),
    "--max-new-tokens": ("--max-tokens",),
    "--beam": ("--beams",),
    "--num-beams": ("--beams",),
}


class HintedCommand(TyperCommand):
    """A command whose message about an unknown option names the one to use instead."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        has_empty = any(not word or word.endswith("=") for word in args)
        try:
            rest = super().parse_args(ctx, args)
        except Exception as error:
            known = {option for parameter in self.params for option in parameter.opts}
            wanted = INSTEAD.get(getattr(error, "option_name", None) or "", ())
            usable = [option for option in wanted if option.split()[0] in known]
            if usable and hasattr(error, "possibilities"):
                error.possibilities = usable[:1]
            raise
        if has_empty and "." not in args:
            self._refuse_empty_paths(ctx.params)
        return rest

    def _refuse_empty_paths(self, values: dict[str, Any]) -> None:
        """Refuse an empty word for a path, such as an unset variable: it is not this folder."""
        for parameter in self.params:
            if values.get(parameter.name or "") == Path():
                name = parameter.opts[0] if parameter.opts[0][0] == "-" else parameter.metavar
                raise ThreefoldError(f"{name} is empty; expected a path")


class CommandGroup(TyperGroup):
    """Commands whose list shows the first sentence of each in full."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        named = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        shown = [(name, command) for name, command in named if command and not command.hidden]
        longest = max(len(command.help or "") for _, command in shown)
        with formatter.section("Commands"):
            formatter.write_dl([(name, c.get_short_help_str(longest)) for name, c in shown])


class Commands(CommandGroup):
    """All commands; one that is interrupted and does not say so itself is shown again."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            output.complain(stopped_text(ctx.obj, f"{str(stop) or 'interrupted'}; to run it again"))
            raise typer.Exit(output.INTERRUPTED) from None
