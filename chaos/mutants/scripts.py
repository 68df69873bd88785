"""Servers that are wrong: scripts with one mistake each, sent in place of the right ones.

The rule: as in `rules`, the client is right, and what is broken is the decision. A client that has to be deaf to its
own clock for the mistake to show is made so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.mutants.clients import ignores_own_clock
from chaos.mutants.patching import rewrite
from holdfast.commands import Acquire, Release, Renew

if TYPE_CHECKING:
    from pathlib import Path


def script_release_ignores_token(_folder: Path) -> None:
    """It compares no token."""
    rewrite(Release, ("holder == token and", "holder and"), ("if holder ~= token then", "if false then"))


def script_revives_on_renew(folder: Path) -> None:
    """What it does not find it puts back, whoever has the lease by now."""
    revived = "if holder ~= ARGV[3] then holder, client, held = ARGV[3], me, fence end\noffered = false\nif false then"
    rewrite(Renew, ("if holder ~= ARGV[3] or expires <= now or offered then", revived))
    ignores_own_clock(folder)


def script_renew_changes_nothing(_folder: Path) -> None:
    """It says that the lease was renewed, and leaves its end where it was."""
    rewrite(Renew, ("expires = now + ttl * 1000", "expires = expires"))


def script_keeps_the_ttl_on_resend(_folder: Path) -> None:
    """A holder that asks again is answered with its fence, and its lease ends when it would have."""
    mine = "holder == token and not offered"
    rewrite(
        Acquire,
        ("ttl = tonumber(ARGV[5])\nholder,", f"ttl = tonumber(ARGV[5])\nlocal again = {mine} and expires\nholder,"),
        ("= token, me, ARGV[4], now + ttl * 1000, false", "= token, me, ARGV[4], again or now + ttl * 1000, false"),
    )


def script_serves_last_in_first_out(_folder: Path) -> None:
    """Whoever comes to the queue stands at its head."""
    rewrite(Acquire, ("redis.call('ZADD', queue, ticket, token)", "redis.call('ZADD', queue, -ticket, token)"))
