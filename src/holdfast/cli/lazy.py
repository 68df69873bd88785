"""Load a command's module when the command is called, so that `holdfast --help` imports none of them.

A command is a plain function with typer's annotations that returns an exit code. Typer only parses the arguments:
`deferred` makes typer return the finished call, and `holdfast.cli.app.main` runs it, so that one place handles errors,
signals and broken pipes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

CONTEXT = {"help_option_names": ["-h", "--help"]}
Call = Callable[[], int]


class LazyCommand(NamedTuple):
    """A command or a group of commands that is imported on first use.

    `target` is `package.module:attribute`: a function, or a `CommandGroup` if `is_group`. `summary` is the line in
    `holdfast --help`; a test compares it with the help of the command itself.
    """

    name: str
    target: str
    summary: str
    is_group: bool = False

    def load(self) -> Any:
        """Import the module and return the command in the form that typer runs."""
        module, attribute = self.target.split(":")
        found = getattr(import_module(module), attribute)
        if not self.is_group:
            alone = CommandGroup()
            alone.command(self.name)(found)
            found = alone
        command: Any = typer.main.get_command(found)
        command.name = self.name
        return command


class LazyGroup(TyperGroup):
    """The top level: lists its commands from a table, and imports only the command that is called."""

    table: dict[str, LazyCommand]

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - typer's signature
        """Return the names in the order of the table."""
        return list(self.table)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """Return a placeholder with name and summary, which is enough for help and shell completion."""
        entry = self.table.get(cmd_name)
        return None if entry is None else TyperCommand(entry.name, help=entry.summary, rich_markup_mode=None)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Import the command that is called."""
        name, placeholder, rest = super().resolve_command(ctx, args)
        return name, placeholder and self.table[str(name)].load(), rest


class CommandGroup(typer.Typer):
    """The commands of one file, with the same settings in every group."""

    def __init__(self, text: str | None = None) -> None:
        super().__init__(
            help=text,
            rich_markup_mode=None,  # plain help takes a third of the time
            add_completion=False,
            no_args_is_help=text is not None,
            context_settings=CONTEXT,
        )

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        """Register a function that returns an exit code; typer returns the call instead of running it."""
        register = super().command(name, **options)

        def decorate(function: Callable[..., int]) -> Callable[..., int]:
            register(deferred(function))
            return function

        return decorate


def lazy_group(entries: list[LazyCommand]) -> type[LazyGroup]:
    """Return a group class with these commands."""
    return type("HoldfastGroup", (LazyGroup,), {"table": {entry.name: entry for entry in entries}})


def deferred(function: Callable[..., int]) -> Callable[..., Call]:
    """Return a function with the same signature that returns the call to `function` instead of making it."""

    @wraps(function)
    def parsed(**arguments: Any) -> Call:
        return partial(function, **arguments)

    return parsed
