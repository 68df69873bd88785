"""`holdfast install`: npm packages in a directory that many workers share, each installed once."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import holdfast
from holdfast.cli import codes, looking, output
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
    """Have them all there; 0 if they are."""
    if not os.path.isdir(repo_dir):
        raise not_there(Path(repo_dir))
    if url:
        looking.refuse_lonely(url)
    client = holdfast.connect(url or url_of("file", os.path.abspath(repo_dir))) if lock else None
    try:
        repo = Repo(
            client,
            repo_dir,
            ttl=ttl,
            timeout=timeout,
            retries=retries,
            npm_timeout=npm_timeout,
            say=_say,
            warn=_say,
        )
        done = repo.install(specs, allow=allow)
    finally:
        if client is not None:
            client.close(CLOSE_S)
    if as_json:
        output.print_json({"installed": [_as_json(each) for each in done]})
    else:
        for each in done:
            sys.stdout.write(_line(each) + "\n")
    return codes.ATTENTION if any(each.error for each in done) else codes.OK


def _say(what: str) -> None:
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
