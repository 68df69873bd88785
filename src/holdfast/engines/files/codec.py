"""A record as it is written on a sheet.

The rules speak of moments on one clock, and on a sheet there are the clocks of many machines. So a sheet has dates and
lengths: a lease that was granted or renewed then, for so long. What a step leaves as it was stays as it was written;
what it changed is dated now, on the machine that changed it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.engines.files.clocks import Date
from holdfast.rules.lease_record import (
    NO_TOMBSTONES,
    NO_WAITERS,
    HolderRecord,
    MemoryTombstones,
    Record,
    Tombstone,
    Waiter,
    Waiters,
)

if TYPE_CHECKING:
    from holdfast.engines.files.clocks import Dates

LAYOUT = 1
_MEMORY_US = 60_000_000  # of a sheet that does not say
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


class Newer(ValueError):
    """A sheet of a version that this one does not know."""


class Paper(NamedTuple):
    """A record on this machine's clock, beside the lines that it was read from."""

    record: Record
    name: str = ""
    holder: list[Any] | None = None
    waiters: dict[str, list[Any]] = {}  # noqa: RUF012 - never changed
    tombstones: dict[str, list[Any]] = {}  # noqa: RUF012 - never changed
    memory_us: int = 0


EMPTY = Paper(Record())


def read(body: bytes, dates: Dates) -> Paper:
    """What is written there; `ValueError`, `LookupError` or `TypeError` if it is not of our making."""
    sheet = json.loads(body.decode())
    if sheet["v"] != LAYOUT:
        raise Newer(f"it has layout {sheet['v']}, and this version knows {LAYOUT}")
    line, buried = sheet["waiters"], sheet["tombs"]
    if not all(who[1].isalnum() for who in (*line, *([sheet["holder"]] if sheet["holder"] else []))):
        raise ValueError("a client is a plain word: it will be looked for as a file")
    waiters = [Waiter._make((*who, dates.began_us(Date(*at)))) for *who, at in line]
    tombstones = [
        Tombstone(token, dates.here_us(Date(*at)) + lasts_us, why, detail)
        for token, lasts_us, why, detail, at in buried
    ]
    record = Record(
        sheet["fence"],
        _read_holder(sheet["holder"], dates),
        Waiters.of(waiters) if waiters else NO_WAITERS,
        MemoryTombstones.of(tombstones) if tombstones else NO_TOMBSTONES,
        sheet["last"],
        dates.here_us(Date(*sheet["at"])),
    )
    return Paper(
        record,
        sheet["name"],
        sheet["holder"],
        {each[0]: each for each in line},
        {each[0]: each for each in buried},
        sheet.get("memory", _MEMORY_US),
    )


def _read_holder(line: list[Any] | None, dates: Dates) -> HolderRecord | None:
    if line is None:
        return None
    token, client, holder, fence, ttl_ms, offered, lasts_us, at, since = line
    ends_us = dates.here_us(Date(*at)) + lasts_us
    return HolderRecord(token, client, holder, fence, ttl_ms, dates.began_us(Date(*since)), ends_us, offered)


def is_same(before: Record, after: Record) -> bool:
    """Whether nothing changed that anybody would have to know."""
    return after is before or after._replace(touched_us=before.touched_us) == before


def written(name: str, before: Paper, after: Record, now: Date, memory_us: int) -> bytes:
    """The sheet that comes after this paper; for how long it is remembered is for whoever used the name last to say."""
    tombstones = after.tombstones
    assert isinstance(tombstones, MemoryTombstones)
    sheet = {
        "v": LAYOUT,
        "name": name,
        "fence": after.fence,
        "last": after.last,
        "at": now,
        "memory": memory_us,
        "holder": _holder_line(before, after.holder, now),
        "waiters": [before.waiters.get(waiter.token) or [*waiter[:4], now] for waiter in after.waiters],
        "tombs": [
            before.tombstones.get(tombstone.token)
            or [tombstone.token, tombstone.until_us - now.at_us, tombstone.why, tombstone.detail, now]
            for tombstone in tombstones
            if tombstone.until_us > now.at_us
        ],
    }
    return _encode(sheet).encode()


def _holder_line(before: Paper, holder: HolderRecord | None, now: Date) -> list[Any] | None:
    if holder is None:
        return None
    old, line = before.record.holder, before.holder
    if line is not None and holder == old:
        return line
    goes_on = old is not None and old.token == holder.token and old.since_us == holder.since_us
    since = line[-1] if line is not None and goes_on else now
    return [*holder[:5], holder.offered, holder.expires_us - now.at_us, now, since]
