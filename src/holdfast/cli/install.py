"""`holdfast install`: npm packages in a directory that many workers share, each installed once."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import holdfast
from holdfast.cli import codes, failing, looking, output
from holdfast.cli.ending import signals_end_it
from holdfast.config import url_of
from holdfast.contrib.npm import Installed, Repo, not_there

CLOSE_S = 5.0


def install(
    url: str | None,
    repo_dir: str,
    specs: list[str],
    *,
    allow: list[str],
    ttl: float,
    timeout: float | None,
    retries: int,
    npm_timeout: float,
    lock: bool,
    as_json: bool,
) -> int:
    """Have them all there; 0 if they are. A signal that ends us ends every npm first, and clears up behind it."""
    if not os.path.isdir(repo_dir):
        raise not_there(Path(repo_dir))
    if url:
        looking.refuse_lonely(url)
    options: dict[str, Any] = {"ttl": ttl, "timeout": timeout, "retries": retries, "npm_timeout": npm_timeout}
    try:
        with signals_end_it(), _client(url or url_of("file", os.path.abspath(repo_dir)), lock=lock) as client:
            done = Repo(client, repo_dir, say=_say, warn=_say, **options).install(specs, allow=allow)
    except SystemExit as ended:
        return failing.tell("interrupted", int(str(ended.code)), "interrupted", as_json=as_json)
    if as_json:
        output.print_json({"installed": [_as_json(each) for each in done]})
    else:
        for each in done:
            sys.stdout.write(_line(each) + "\n")
    return codes.ATTENTION if any(each.error for each in done) else codes.OK


@contextmanager
def _client(url: str, *, lock: bool) -> Iterator[holdfast.Holdfast | None]:
    """Whoever guards the directory, if anybody does."""
    client = holdfast.connect(url) if lock else None
    try:
        yield client
    finally:
        if client is not None:
            client.close(CLOSE_S)


def _say(what: str) -> None:
    with suppress(OSError):  # whoever no longer reads does not want less to be installed
        sys.stderr.write(f"holdfast: {what}\n")
        sys.stderr.flush()


def _as_json(each: Installed) -> dict[str, Any]:
    return each._asdict()


def _line(each: Installed) -> str:
    if each.error:
        return f"failed     {each.spec}: {each.error}"
    if each.skipped:
        return f"skipped    {each.spec}: {each.skipped}"
    return f"{'installed' if each.fresh else 'there':<10} {each.alias}  {each.path}"
