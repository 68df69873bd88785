"""The commands and their options. What they do is in modules of their own, imported when a command is called.

Typer reads the words and no more: a command gives back what is to be done, and `main` does it, so that errors, signals
and broken pipes are ours to tell. A feature adds its commands here, in the same style: `--url` and `--json`, an
example, and codes from `codes`.
"""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

import typer

from holdfast.cli import codes, failing
from holdfast.cli.directory.command import directories
from holdfast.cli.dlq.command import letters
from holdfast.cli.limit.command import limits
from holdfast.cli.options import All, Job, Json, Limit, Name, Prefix, Url, Yes
from holdfast.cli.pool.command import pools
from holdfast.cli.queue.command import queues
from holdfast.errors import HoldfastError

app = typer.Typer(
    name="holdfast",
    help="One holder at a time, and proof of it: leases on the command line.\n\n"
    "\b\n"
    "Example:\n"
    "  holdfast run nightly-report --timeout 0 -- ./report.sh\n"
    "  holdfast ls",
    epilog="Exit codes are listed in docs/cli.md. Every command takes --json.",
    rich_markup_mode=None,  # plain help is there in a third of the time
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(pools, name="pool")
app.add_typer(limits, name="limit")
app.add_typer(directories, name="directory")
app.add_typer(queues, name="queue")
app.add_typer(letters, name="dlq")


def _version(wanted: bool) -> None:
    if wanted:
        from holdfast import __version__  # noqa: PLC0415 - to find it out takes as long as all the rest

        sys.stdout.write(f"holdfast {__version__}\n")
        raise typer.Exit


@app.callback()
def tool(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """See the help of `app`."""


@app.command()
def run(
    name: Name,
    command: Annotated[list[str], typer.Argument(help="The program and its arguments, after --", metavar="-- CMD")],
    url: Url = None,
    ttl: Annotated[float, typer.Option(help="Seconds that the lease lasts without renewal; at least 1.")] = 30.0,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="Seconds to wait for the lease; 0 tries once.", show_default="for ever")
    ] = None,
    max_hold: Annotated[
        float | None,
        typer.Option(
            min=0, help="Seconds after which the program gets TERM, and KILL a grace later.", show_default="no bound"
        ),
    ] = None,
    grace: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds between TERM and the deadline.", show_default="a quarter of the ttl"),
    ] = None,
    once: Annotated[
        float | None,
        typer.Option(help="Do not run it if it succeeded within so many seconds, on any host.", show_default="run it"),
    ] = None,
    label: Annotated[str, typer.Option(help="What others see of this holder, beside host and pid.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON on standard error at the end.")] = False,
) -> Job:
    """Run a program under a lease.

    The program ends before anybody else may hold the lease, also if this process is frozen or killed. It finds
    HOLDFAST_NAME, HOLDFAST_FENCE, HOLDFAST_TOKEN, HOLDFAST_TTL and HOLDFAST_DEADLINE in its environment.

    \b
    Example:
      holdfast run nightly-report --timeout 0 -- ./report.sh --full
      holdfast run nightly-report --once 43200 -- ./report.sh
    """
    from holdfast.cli.run.command import Request  # noqa: PLC0415
    from holdfast.cli.run.command import run as run_program  # noqa: PLC0415

    return partial(run_program, Request(url, name, command, ttl, timeout, max_hold, grace, once, label, as_json))


@app.command("ls")
def list_names(
    prefix: Prefix = "", url: Url = None, every: All = False, limit: Limit = 1000, as_json: Json = False
) -> Job:
    """What is held, by whom, since when, and how many wait.

    This is the one command that scans: on a large server it takes its time, in steps that block nobody.

    \b
    Example:
      holdfast ls orders/
    """
    from holdfast.cli import look  # noqa: PLC0415

    return partial(look.list_names, url, prefix, limit=limit, every=every, as_json=as_json)


@app.command()
def show(name: Name, url: Url = None, as_json: Json = False) -> Job:
    """Who holds one name, and who waits for it, in order.

    \b
    Example:
      holdfast show orders/42
    """
    from holdfast.cli import look  # noqa: PLC0415

    return partial(look.show, url, name, as_json=as_json)


@app.command()
def watch(
    prefix: Prefix = "",
    url: Url = None,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 1.0,
    count: Annotated[int | None, typer.Option(min=1, help="Stop after so many looks.", show_default="never")] = None,
    every: All = False,
    limit: Limit = 1000,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON per look.")] = False,
) -> Job:
    """What is held, live, like top. Ctrl-C ends it.

    \b
    Example:
      holdfast watch orders/ --interval 0.5
    """
    from holdfast.cli.watching import watch as keep_watching  # noqa: PLC0415

    return partial(
        keep_watching, url, prefix, limit=limit, every=every, interval=interval, count=count, as_json=as_json
    )


@app.command()
def wait(
    name: Name,
    url: Url = None,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="Seconds to wait at most.", show_default="for ever")
    ] = None,
    interval: Annotated[float, typer.Option(min=0.05, help="Seconds between two looks.")] = 0.5,
    as_json: Json = False,
) -> Job:
    """Wait until nobody holds the name. It does not take it, and it is in nobody's way.

    \b
    Example:
      holdfast wait deploy --timeout 600 && echo "the deployment is over"
    """
    from holdfast.cli import look  # noqa: PLC0415

    return partial(look.wait, url, name, timeout=timeout, interval=interval, as_json=as_json)


@app.command("break")
def break_lease(
    name: Name,
    reason: Annotated[str, typer.Option("--reason", help="Why: the holder reads it in its LeaseLost.")],
    url: Url = None,
    yes: Yes = False,
    as_json: Json = False,
) -> Job:
    """End a lease by force: the fence grows, the next in line gets it, the holder is told.

    Safe only where the resource compares fences: the holder may be at work until it hears of it.

    \b
    Example:
      holdfast break orders/42 --reason "worker 7 is stuck, see ticket 1234"
    """
    from holdfast.cli import look  # noqa: PLC0415

    return partial(look.break_lease, url, name, reason, yes=yes, as_json=as_json)


@app.command()
def doctor(url: Url = None, as_json: Json = False) -> Job:
    """What the engine is, what it promises, how far away it is, and what is wrong with it.

    It tries a lease of its own from beginning to end. Exit code 0: all is well; 1: something should be looked at; 2: it
    cannot be relied on.

    \b
    Example:
      holdfast doctor --url redis://localhost
    """
    from holdfast.cli.doctor import doctor as examine  # noqa: PLC0415

    return partial(examine, url, as_json=as_json)


@app.command()
def bench(
    url: Url = None,
    seconds: Annotated[float, typer.Option(min=0.5, max=600, help="How long it takes.")] = 60.0,
    as_json: Json = False,
) -> Job:
    """How quick leases are on your own server: one minute, a plain verdict.

    It takes and gives back leases of names of its own, as fast as it can, from this one process.

    \b
    Example:
      holdfast bench --url redis://localhost --seconds 10
    """
    from holdfast.cli.bench import bench as measure  # noqa: PLC0415

    return partial(measure, url, seconds, as_json=as_json)


@app.command()
def demo(
    url: Url = None,
    without_guard: Annotated[
        bool, typer.Option("--without-guard", help="The counter compares no fences: shows that the check can fail.")
    ] = False,
    as_json: Json = False,
) -> Job:
    """Five processes, one lock: one is killed, one is frozen and its late write is refused.

    \b
    Example:
      holdfast demo
    """
    from holdfast.demo.__main__ import play  # noqa: PLC0415

    return partial(play, url, guarded=not without_guard, as_json=as_json)


@app.command()
def install(
    specs: Annotated[list[str], typer.Argument(help="Packages: name@version, or name@latest.", metavar="SPEC")],
    repo_dir: Annotated[
        str, typer.Option("--repo-dir", envvar="HOLDFAST_REPO_DIR", help="The directory that all workers share.")
    ],
    url: Annotated[
        str | None,
        typer.Option("--url", help="Where the leases live.", show_default="files in the repo directory"),
    ] = None,
    allow: Annotated[
        list[str] | None, typer.Option("--allow", help="Only names that begin so; may be given again.")
    ] = None,
    ttl: Annotated[float, typer.Option(min=1, help="Seconds that a lease lasts without renewal.")] = 30.0,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="Seconds to wait for another worker.", show_default="for ever")
    ] = None,
    retries: Annotated[int, typer.Option(min=0, max=20, help="How often a failed install is tried again.")] = 2,
    npm_timeout: Annotated[float, typer.Option(min=1, help="Seconds that one run of npm may take.")] = 600.0,
    repo_lock: Annotated[
        bool, typer.Option("--repo-lock/--no-repo-lock", help="Without it every worker installs for itself.")
    ] = True,
    as_json: Json = False,
) -> Job:
    """Install npm packages into a directory that many workers share: each one once, whole, side by side.

    A package is imported from the repo directory by its alias, name_version. HOLDFAST_NO_REPO_LOCK=1 is --no-repo-lock.

    \b
    Example:
      holdfast install --repo-dir /shared/repo lodash@4.17.21 @scope/name@latest
    """
    from holdfast.cli.install import install as install_all  # noqa: PLC0415

    off = os.environ.get("HOLDFAST_NO_REPO_LOCK", "").lower() in ("1", "true", "yes")
    return partial(
        install_all,
        url,
        repo_dir,
        specs,
        allow=allow or [],
        ttl=ttl,
        timeout=timeout,
        retries=retries,
        npm_timeout=npm_timeout,
        lock=repo_lock and not off,
        as_json=as_json,
    )


# Older and newer releases of typer have these in different places.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_DASHES = "put -- before the program, and the name before it: holdfast run NAME -- CMD"


def main(arguments: list[str]) -> int:
    """Call the command; whatever goes wrong is one line."""
    as_json = "--json" in arguments[: arguments.index("--") if "--" in arguments else None]
    _streams()
    _quiet()
    if arguments[:1] in (["--show-completion"], ["--install-completion"]) and len(arguments) > 1:
        # Typer would ask which shell this is, and forget which one was named: a script runs in none of them.
        os.environ["_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"] = "1"
    try:
        return _called(arguments)
    except HoldfastError as error:
        return failing.tell_error(error, as_json=as_json, command=" ".join(arguments[:1]))
    except BrokenPipeError:
        _give_up_output()  # whoever read us has seen enough
        return codes.SIGNAL + 13
    except (KeyboardInterrupt, typer.Abort):
        return failing.tell("interrupted", codes.SIGNAL + 2, "interrupted", as_json=as_json)
    except _UsageError as error:
        return _misused(error, arguments, as_json=as_json)
    except Exception as error:
        return _failed(error, as_json=as_json)


def _failed(error: Exception, *, as_json: bool) -> int:
    """A disk that is full, or a mistake of ours."""
    if isinstance(error, OSError) and error.errno in _FULL:
        _give_up_output()
        return failing.tell("failed", codes.OUTPUT, f"cannot write the answer: {error.strerror}", as_json=as_json)
    if os.environ.get("HOLDFAST_DEBUG"):
        raise error
    what = f"a mistake in holdfast: {error!r}; HOLDFAST_DEBUG=1 tells where"
    return failing.tell("failed", codes.INTERNAL, what, as_json=as_json)


def _give_up_output() -> None:
    """Python would try once more at its end, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _called(arguments: list[str]) -> int:
    with suppress(AttributeError, ValueError):
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    # A word that needs another one behind it shows its help, as no word at all does.
    bare = arguments in ([], *([group.name] for group in app.registered_groups))
    job = app([*arguments, "--help"] if bare else arguments, prog_name="holdfast", standalone_mode=False)
    if callable(job) and arguments[0] == "run" and job.args[0].command != _behind_dashes(arguments):
        raise typer.BadParameter(_DASHES)
    code: int = job() if callable(job) else codes.USAGE if bare else codes.OK  # or the help was shown
    sys.stdout.flush()
    return code


def _behind_dashes(arguments: list[str]) -> list[str] | None:
    """The program. Not all of it behind --, or more than it: one word would be taken for another, and nothing said."""
    return arguments[arguments.index("--") + 1 :] if "--" in arguments else None


def _misused(error: Any, arguments: list[str], *, as_json: bool) -> int:
    context = getattr(error, "ctx", None)
    what = error.format_message().rstrip(".") + failing.as_written(error)
    if arguments[:1] == ["run"] and "--" not in arguments and _DASHES not in what:
        what += f"; {_DASHES}"
    more = f"; see `{context.command_path} --help`" if context else ""
    return failing.tell("usage", codes.USAGE, f"{what}{more}", as_json=as_json)


def _streams() -> None:
    """A stream that we were started without is one that goes nowhere, so that no file of ours gets its number."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number; the program does not inherit it
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: SIM115
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the end
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def _quiet() -> None:
    """What happens is told by commands, not by the library's log."""
    import logging  # noqa: PLC0415

    log = logging.getLogger("holdfast")
    log.addHandler(logging.NullHandler())
    log.propagate = False
