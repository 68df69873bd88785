"""A record as JSON.

The rules know moments on one clock, and clients on many machines write the stored record. So the stored record has
timestamps and durations: a lease was granted or renewed at this timestamp, for this long. A step stores unchanged
fields as it read them; changed fields get the timestamp of the machine that changed them.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.engines.files.clocks import Timestamp
from holdfast.rules.lease_record import (
    NO_TOMBSTONES,
    NO_WAITERS,
    HolderRecord,
    MemoryTombstones,
    Record,
    Tombstone,
    Waiter,
    Waiters,
    checked_fence,
)

if TYPE_CHECKING:
    from holdfast.engines.files.clocks import Clocks

LAYOUT = 2
_MEMORY_US = 60_000_000  # the default, if the stored record has no value


def _form() -> re.Pattern[bytes]:
    """Return the form of a stored record. It is checked before it is decoded: a planted record may be deep or huge."""
    text, number = r'"[^"\\]*+(?:\\(?:["\\/bfnrt]|u00[0-9a-f]{2})[^"\\]*+)*+"', r"-?[0-9]{1,18}"
    client = r'"[0-9A-Za-z]{1,64}"'  # the name of a file
    at = rf"\[{text},{number},{number}\]"
    holder = rf"\[{text},{client},{text},{number},{number},(?:true|false),{number},{at},{at}\]"
    waiter, tombstone = rf"\[{text},{client},{text},{number},{at}\]", rf"\[{text},{number},{text},{text},{at}\]"
    form = (
        rf'\{{"layout":{LAYOUT},"name":{text},"fence":{number},"last":{text},"at":{at},(?:"memory":{number},)?'
        rf'"holder":(?:null|{holder}),"waiters":\[(?:{waiter}(?:,{waiter})*+)?\],'
        rf'"tombstones":\[(?:{tombstone}(?:,{tombstone})*+)?\]\}}'
    )
    return re.compile(form.encode())


_FORM = _form().fullmatch
_LAYOUT_FORM = re.compile(rb'\{ ?"layout": ?([0-9]{1,9})[,} ]').match
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


class OtherLayout(ValueError):
    """The stored record has a layout that this version does not know."""


class StoredRecord(NamedTuple):
    """A record on this machine's clock, beside the JSON values that it was read from."""

    record: Record
    name: str = ""
    holder: list[Any] | None = None
    waiters: dict[str, list[Any]] = {}  # noqa: RUF012 - never changed
    tombstones: dict[str, list[Any]] = {}  # noqa: RUF012 - never changed
    memory_us: int = 0


EMPTY = StoredRecord(Record())


def read(body: bytes, clocks: Clocks) -> StoredRecord:
    """Decode a stored record; raise `ValueError` if holdfast did not write it."""
    if _FORM(body) is None:
        raise _unreadable(body)
    stored = json.loads(body.decode())
    line, ended, holder = stored["waiters"], stored["tombstones"], stored["holder"]
    waiters = [Waiter._make((*fields, clocks.began_us(Timestamp(*at)))) for *fields, at in line]
    tombstones = [
        Tombstone(token, clocks.here_us(Timestamp(*at)) + lasts_us, why, detail)
        for token, lasts_us, why, detail, at in ended
    ]
    record = Record(
        checked_fence(stored["fence"]),
        _read_holder(holder, clocks),
        Waiters.of(waiters) if waiters else NO_WAITERS,
        MemoryTombstones.of(tombstones) if tombstones else NO_TOMBSTONES,
        stored["last"],
        clocks.here_us(Timestamp(*stored["at"])),
    )
    return StoredRecord(
        record,
        stored["name"],
        holder,
        {each[0]: each for each in line},
        {each[0]: each for each in ended},
        stored.get("memory", _MEMORY_US),
    )


def _unreadable(body: bytes) -> ValueError:
    """Return the error for a record without the form that `written` gives it."""
    layout = _LAYOUT_FORM(body)
    if layout is None or int(layout[1]) == LAYOUT:
        return ValueError("holdfast did not write it")
    return OtherLayout(f"it has layout {int(layout[1])}, and this version of holdfast uses layout {LAYOUT}")


def _read_holder(fields: list[Any] | None, clocks: Clocks) -> HolderRecord | None:
    if fields is None:
        return None
    token, client, holder, fence, ttl_ms, offered, lasts_us, at, since = fields
    ends_us = clocks.here_us(Timestamp(*at)) + lasts_us
    return HolderRecord(
        token, client, holder, checked_fence(fence), ttl_ms, clocks.began_us(Timestamp(*since)), ends_us, offered
    )


def is_same(before: Record, after: Record) -> bool:
    """Return true if nothing changed that other clients have to know; the time of the last use does not count."""
    return after is before or after._replace(touched_us=before.touched_us) == before


def written(name: str, before: StoredRecord, after: Record, now: Timestamp, memory_us: int) -> bytes:
    """Encode the record that follows `before`. The last client that uses a name decides how long it is remembered."""
    tombstones = after.tombstones
    assert isinstance(tombstones, MemoryTombstones)
    stored = {
        "layout": LAYOUT,
        "name": name,
        "fence": after.fence,
        "last": after.last,
        "at": now,
        "memory": memory_us,
        "holder": _holder_fields(before, after.holder, now),
        "waiters": [before.waiters.get(waiter.token) or [*waiter[:4], now] for waiter in after.waiters],
        "tombstones": [
            before.tombstones.get(each.token) or [each.token, each.until_us - now.at_us, each.why, each.detail, now]
            for each in tombstones
            if each.until_us > now.at_us
        ],
    }
    return _encode(stored).encode()


def _holder_fields(before: StoredRecord, holder: HolderRecord | None, now: Timestamp) -> list[Any] | None:
    if holder is None:
        return None
    old, fields = before.record.holder, before.holder
    if fields is not None and holder == old:
        return fields
    is_same_lease = old is not None and old.token == holder.token and old.since_us == holder.since_us
    since = fields[-1] if fields is not None and is_same_lease else now
    return [*holder[:5], holder.offered, holder.expires_us - now.at_us, now, since]
