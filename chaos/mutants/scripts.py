"""Mutants of the Lua scripts: as in `rules`, the client is right, and the decision is wrong.

Where the mistake shows only if the client ignores its own clock, the mutant changes the client, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.mutants.clients import ignores_own_clock
from chaos.mutants.patching import rewrite
from holdfast.commands import Acquire, ReleaseLease, Renew

if TYPE_CHECKING:
    from pathlib import Path


def script_release_ignores_token(_folder: Path) -> None:
    """A release compares no token."""
    rewrite(
        ReleaseLease,
        ("holder_token == token and", "holder_token and"),
        ("if holder_token ~= token then", "if false then"),
    )


def script_revives_on_renew(folder: Path) -> None:
    """A renewal restores a lease that is gone, although another worker may hold it by now."""
    taken = "holder_token, client, held = ARGV[3], caller, fence"
    revived = f"if holder_token ~= ARGV[3] then {taken} end\noffered = false\nif false then"
    rewrite(Renew, ("if holder_token ~= ARGV[3] or expires <= now or offered then", revived))
    ignores_own_clock(folder)


def script_renew_changes_nothing(_folder: Path) -> None:
    """A renewal answers that it renewed the lease, and leaves its expiry as it was."""
    rewrite(Renew, ("ttl = renewed_ttl\n  expires = now + ttl * 1000", "ttl = renewed_ttl"))


def script_keeps_the_ttl_on_resend(_folder: Path) -> None:
    """A resent acquire of the holder returns its fence, and does not restart the ttl."""
    mine = "holder_token == token and not offered"
    rewrite(
        Acquire,
        (
            "ttl = tonumber(ARGV[5])\nholder_token,",
            f"ttl = tonumber(ARGV[5])\nlocal again = {mine} and expires\nholder_token,",
        ),
        (
            "= token, caller, ARGV[4], now + ttl * 1000, false",
            "= token, caller, ARGV[4], again or now + ttl * 1000, false",
        ),
    )


def script_serves_last_in_first_out(_folder: Path) -> None:
    """A new waiter joins at the head of the waiting line."""
    rewrite(Acquire, ("redis.call('ZADD', line_key, ticket, token)", "redis.call('ZADD', line_key, -ticket, token)"))
