"""`holdfast install`: install npm packages into a directory that many workers share, each package once."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.blocking import Holdfast, connect
from holdfast.cli import codes, errors, output
from holdfast.cli.connect import refuse_process_scope
from holdfast.cli.options import Json, duration
from holdfast.cli.signals import exit_on_signals
from holdfast.config import url_of
from holdfast.contrib.npm import Installed, Repo, not_there

CLOSE_S = 5.0


def install(
    specs: Annotated[list[str], typer.Argument(help="Packages: name@version, or name@latest.", metavar="SPEC")],
    repo_dir: Annotated[
        str, typer.Option("--repo-dir", envvar="HOLDFAST_REPO_DIR", help="The directory that all workers share.")
    ],
    url: Annotated[
        str | None,
        typer.Option("--url", help="Where the leases are stored.", show_default="files in the repo directory"),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            "--allow",
            help="Only this package, this scope (@acme), or names that begin so (acme-); may be given several times.",
        ),
    ] = None,
    ttl: Annotated[float, duration("How long a lease lasts without renewal.", least=1)] = 30.0,
    timeout: Annotated[float | None, duration("How long to wait for another worker.", show_default="for ever")] = None,
    retries: Annotated[int, typer.Option(min=0, max=20, help="How often a failed install is retried.")] = 2,
    npm_timeout: Annotated[float, duration("How long one run of npm may take.", least=1)] = 600.0,
    run_scripts: Annotated[
        bool, typer.Option("--run-scripts", help="Let npm run the lifecycle scripts of the packages.")
    ] = False,
    repo_lock: Annotated[
        bool, typer.Option("--repo-lock/--no-repo-lock", help="Without the lock every worker installs for itself.")
    ] = True,
    as_json: Json = False,
) -> int:
    """Install npm packages into a directory that many workers share: each package once, complete, side by side.

    A package is imported from the repo directory by its alias, name_version. HOLDFAST_NO_REPO_LOCK=1 is --no-repo-lock.

    \b
    Example:
      holdfast install --repo-dir /shared/repo lodash@4.17.21 @scope/name@latest
    """
    if not os.path.isdir(repo_dir):
        raise not_there(Path(repo_dir))
    if url:
        refuse_process_scope(url)
    locked = repo_lock and os.environ.get("HOLDFAST_NO_REPO_LOCK", "").lower() not in ("1", "true", "yes")
    options: dict[str, Any] = {"ttl": ttl, "timeout": timeout, "retries": retries, "npm_timeout": npm_timeout}
    options["run_scripts"] = run_scripts
    try:
        # A signal that ends this process first ends every npm, and removes the files that they left.
        with exit_on_signals(), _client(url or url_of("file", os.path.abspath(repo_dir)), lock=locked) as client:
            repo = Repo(client, repo_dir, say=_say, warn=_say, **options)
            done = repo.install(specs, allow=allow or [])
    except SystemExit as ended:
        return errors.report("interrupted", int(str(ended.code)), "interrupted", as_json=as_json)
    if as_json:
        output.print_json({"installed": [each._asdict() for each in done]})
    else:
        for each in done:
            sys.stdout.write(_line(each) + "\n")
    return codes.ATTENTION if any(each.error for each in done) else codes.OK


@contextmanager
def _client(url: str, *, lock: bool) -> Iterator[Holdfast | None]:
    """Return the client that locks the directory; `None` without the lock."""
    client = connect(url) if lock else None
    try:
        yield client
    finally:
        if client is not None:
            client.close(CLOSE_S)


def _say(line: str) -> None:
    with suppress(OSError):  # a closed standard error must not stop the installation
        sys.stderr.write(f"holdfast: {line}\n")
        sys.stderr.flush()


def _line(each: Installed) -> str:
    if each.error:
        return f"failed     {each.spec}: {each.error}"
    if each.skipped:
        return f"skipped    {each.spec}: {each.skipped}"
    return f"{'installed' if each.fresh else 'there':<10} {each.alias}  {each.path}"
