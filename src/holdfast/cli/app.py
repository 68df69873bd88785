"""The command line: the table of commands, and `main`, which runs one and turns every failure into one line.

Add a command here and in a module of its own, in the same style: `--url` and `--json`, an example in its docstring, and
exit codes from `codes`.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from contextlib import suppress
from typing import Annotated, Any

import typer

from holdfast.cli import codes, errors
from holdfast.cli.lazy import CONTEXT, LazyCommand, lazy_group
from holdfast.errors import HoldfastError
from holdfast.text import shown_error, without_secrets

COMMANDS = [
    LazyCommand("run", "holdfast.cli.run.command:run", "Run a program under a lease."),
    LazyCommand(
        "acquire",
        "holdfast.cli.shell.command:acquire",
        "Acquire a lease for a shell script, and hold it until the script ends.",
    ),
    LazyCommand("check", "holdfast.cli.shell.command:check", "Exit with 0 only while the lease of a token is trusted."),
    LazyCommand("release", "holdfast.cli.shell.command:release", "Release the lease of a token, and end its watcher."),
    LazyCommand(
        "ls", "holdfast.cli.lease:list_names", "List the leases: holder, age, remaining time, and how many wait."
    ),
    LazyCommand("show", "holdfast.cli.lease:show", "Show the holder of one name, and its waiting line in order."),
    LazyCommand("watch", "holdfast.cli.watch:watch", "Show the leases live, like top."),
    LazyCommand("wait", "holdfast.cli.lease:wait", "Wait until the name has no holder and no waiter."),
    LazyCommand("break", "holdfast.cli.lease:break_lease", "End a lease by force."),
    LazyCommand("doctor", "holdfast.cli.doctor:doctor", "Examine the engine."),
    LazyCommand("bench", "holdfast.cli.bench:bench", "Measure how fast leases are on your own server."),
    LazyCommand("demo", "holdfast.cli.demo:demo", "Show five processes and one lock, with a crash and a freeze."),
    LazyCommand(
        "install", "holdfast.cli.install:install", "Install npm packages into a directory that many workers share."
    ),
    LazyCommand("pool", "holdfast.cli.pool:app", "List and change pools.", is_group=True),
    LazyCommand(
        "limit", "holdfast.cli.limit:app", "Show what a rate limit has counted for a key, and reset it.", is_group=True
    ),
    LazyCommand(
        "registry",
        "holdfast.cli.registry:app",
        "Show the owners of the keys of a registry, and take a key by force.",
        is_group=True,
    ),
    LazyCommand(
        "queue",
        "holdfast.cli.queue:app",
        "Show queues, their messages and their consumers, and publish messages.",
        is_group=True,
    ),
    LazyCommand("dlq", "holdfast.cli.dlq:app", "List and redrive dead letters.", is_group=True),
]

app = typer.Typer(
    name="holdfast",
    cls=lazy_group(COMMANDS),
    help="Leases on the command line: one holder at a time, and proof of it.\n\n"
    "\b\n"
    "Example:\n"
    "  holdfast run nightly-report --timeout 0 -- ./report.sh\n"
    "  holdfast ls",
    epilog="docs/cli.md lists the exit codes. Every command takes --json.",
    rich_markup_mode=None,  # plain help takes a third of the time
    pretty_exceptions_enable=False,
    context_settings=CONTEXT,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from holdfast import __version__  # noqa: PLC0415 - reading it takes as long as all other imports

        sys.stdout.write(f"holdfast {__version__}\n")
        raise typer.Exit


@app.callback()
def holdfast(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Take the options before the command; the text of `--help` is in `app`."""


# Older and newer releases of typer define this class in different places.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_EVERYWHERE = ("--url", "--json")  # options of every command, and of no group
_DASHES = "put -- before the program, and the name before it: holdfast run NAME -- CMD"


def main(arguments: list[str]) -> int:
    """Run the command and return its exit code; a failure prints one line."""
    code = _run(arguments)
    if code and arguments[:1] == ["acquire"] and "--json" not in arguments:
        # `eval` ignores the code of the command inside $(...), so this line repeats it.
        with suppress(OSError, ValueError):
            sys.stdout.write(f"(exit {code})\n")
            sys.stdout.flush()
    return code


def _run(arguments: list[str]) -> int:
    as_json = "--json" in arguments[: arguments.index("--") if "--" in arguments else None]
    _open_missing_streams()
    _silence_log()
    if arguments[:1] in (["--show-completion"], ["--install-completion"]) and len(arguments) > 1:
        # Typer would detect the running shell and ignore the named one, and it detects no shell around a script.
        os.environ["_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"] = "1"
    try:
        return _call(arguments)
    except HoldfastError as error:
        return errors.report_error(error, as_json=as_json, command=" ".join(arguments[:1]))
    except BrokenPipeError:
        _discard_output()  # the reader closed its end
        return codes.SIGNAL + 13
    except (KeyboardInterrupt, typer.Abort):
        return errors.report("interrupted", codes.SIGNAL + 2, "interrupted", as_json=as_json)
    except _UsageError as error:
        return _report_usage(error, arguments, as_json=as_json)
    except Exception as error:
        return _report_failure(error, as_json=as_json)


def _report_failure(error: Exception, *, as_json: bool) -> int:
    """Report a full disk, or a bug of holdfast."""
    if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
        _discard_output()
        return errors.report("failed", codes.OUTPUT, f"cannot write the answer: {error.strerror}", as_json=as_json)
    if os.environ.get("HOLDFAST_DEBUG"):
        raise error
    line = f"a bug in holdfast: {shown_error(error)}; set HOLDFAST_DEBUG=1 to see where"
    return errors.report("failed", codes.INTERNAL, line, as_json=as_json)


def _discard_output() -> None:
    """Redirect standard output to /dev/null: Python would flush it once more at exit, and report an error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _call(arguments: list[str]) -> int:
    with suppress(AttributeError, ValueError):
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    # A group without a command shows its help, like `holdfast` alone.
    is_bare = arguments in ([], *([entry.name] for entry in COMMANDS if entry.is_group))
    call = app([*arguments, "--help"] if is_bare else arguments, prog_name="holdfast", standalone_mode=False)
    if not callable(call):  # typer printed a help page or the version
        code = codes.USAGE if is_bare else codes.OK
    else:
        if arguments[0] == "run" and call.keywords["command"] != _after_dashes(arguments):
            raise typer.BadParameter(_DASHES)
        code = call()
    sys.stdout.flush()
    return code


def _after_dashes(arguments: list[str]) -> list[str] | None:
    """Return the program behind `--`.

    If typer parsed another program, it took an argument of the program for an option of `run`, or the reverse.
    """
    return arguments[arguments.index("--") + 1 :] if "--" in arguments else None


def _report_usage(error: Any, arguments: list[str], *, as_json: bool) -> int:
    context = getattr(error, "ctx", None)
    line = error.format_message().rstrip(".") + errors.refused_value(error)
    if getattr(error, "option_name", "") in _EVERYWHERE and isinstance(
        getattr(context, "command", None), typer.core.TyperGroup
    ):
        line += "; put it after the command"
    if arguments[:1] == ["run"] and "--" not in arguments and _DASHES not in line:
        line += f"; {_DASHES}"
    more = f"; see `{context.command_path} --help`" if context else ""
    return errors.report("usage", codes.USAGE, without_secrets(f"{line}{more}"), as_json=as_json)


def _open_missing_streams() -> None:
    """Open /dev/null for a standard stream that is closed, so that no other file gets its number."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it gets the lowest free number; child processes do not inherit it
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: SIM115
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the end
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def _silence_log() -> None:
    """Keep the library's log off standard error: commands report what happens themselves."""
    log = logging.getLogger("holdfast")
    log.addHandler(logging.NullHandler())
    log.propagate = False
