"""A history: what several processes did, in a file that survives their death.

An event is one line, written by one `write` to a file opened for appending, so that lines of concurrent processes never
mix. Every line has the same length, a fraction of a memory page: a SIGKILL can cut a `write` only between two pages,
and so cannot tear a line in the middle of the file.

Times are CLOCK_MONOTONIC, which all processes of one host share. The moment of recording matters: record `granted`
after the answer, `released` before the release is sent (from then on the worker no longer counts as a holder), and
`died` before the kill (an engine may see the death before the parent does).
"""

from __future__ import annotations

import json
import os
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, get_args

if TYPE_CHECKING:
    from collections.abc import Iterator

Kind = Literal[
    "requested",
    "waiting",  # the engine has put the request into the waiting line
    "granted",
    "renewed",
    "released",
    "lost",
    "refused",
    "worked",  # code that ran under the lease, from `since_ns` to `at_ns`
    "write",
    "observed",  # the leader, as another process saw it
    "died",
    "fault",  # an injected fault begins; `name` is the worker that it affects, or empty for all workers
    "healed",  # that fault is over; it has the same `value`
    "leaked",  # resources that were left after a close; `value` is how many
]

LINE_BYTES = 512
DETAIL_LIMIT = 100

_KINDS = frozenset(get_args(Kind))


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEvent:
    """One action of one worker on one name, or one fact that it learned about the name.

    `since_ns` is the earliest moment at which the event may have happened, such as when the command was sent: between
    that and `at_ns` a worker may have been frozen with the answer unread. `until_ns` is how long the holder trusts its
    lease, `value` the new value of a counter, `accepted` the answer to a `write`.
    """

    at_ns: int
    pid: int
    worker: str
    kind: Kind
    name: str
    fence: int | None = None
    token: str | None = None
    since_ns: int | None = None
    until_ns: int | None = None
    value: int | None = None
    accepted: bool | None = None
    detail: str | None = None

    @property
    def earliest_ns(self) -> int:
        return self.at_ns if self.since_ns is None else self.since_ns


class RecordableLease(Protocol):
    """The part of a lease, of either face, that a recorder reads."""

    name: str
    token: str

    @property
    def fence(self) -> int: ...
    @property
    def lost(self) -> object: ...
    def remaining(self) -> float: ...


class Recorder:
    """Appends the events of one worker to a history that other processes may append to as well."""

    def __init__(self, path: str | os.PathLike[str], worker: str) -> None:
        self.path = Path(path)
        self.worker = worker
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def record(
        self,
        kind: Kind,
        name: str,
        *,
        fence: int | None = None,
        token: str | None = None,
        since_ns: int | None = None,
        until_ns: int | None = None,
        value: int | None = None,
        accepted: bool | None = None,
        detail: str | None = None,
    ) -> HistoryEvent:
        """Record an event that happens now, and return it; on return the event survives the death of this process.

        `kind`: what happened, such as `"granted"` or `"write"`.
        `name`: the name of the lease, or of the resource.
        `fence`, `token`: those of the lease.
        `since_ns`, `until_ns`: the trusted time of the lease, on `time.monotonic_ns`.
        `value`: the value that was written or read.
        `accepted`: whether the resource accepted the write.
        `detail`: text for people.
        """
        if kind == "died":
            raise ValueError("a dead worker cannot record its death; use died(worker, pid)")
        event = HistoryEvent(
            at_ns=time.monotonic_ns(),
            pid=os.getpid(),
            worker=self.worker,
            kind=kind,
            name=name,
            fence=fence,
            token=token,
            since_ns=since_ns,
            until_ns=until_ns,
            value=value,
            accepted=accepted,
            detail=_cut(detail),
        )
        return self._append(event)

    def died(self, worker: str, pid: int, detail: str | None = None) -> HistoryEvent:
        """Record the death of a worker just before killing it: from then on it holds no name.

        `worker`, `pid`: the label and the process id of the worker; `detail`: text for people.
        """
        event = HistoryEvent(
            at_ns=time.monotonic_ns(), pid=pid, worker=worker, kind="died", name="", detail=_cut(detail)
        )
        return self._append(event)

    @contextmanager
    def holding(self, lease: RecordableLease, *, since_ns: int | None = None) -> Iterator[None]:
        """Record a block under a lease: `granted` at its beginning, `lost` or `released` at its end.

        `since_ns`: when the lease was requested.

        The worker counts as the holder for as long as it trusts the lease at the grant; if renewals matter to a test,
        an observer records them.
        """
        lease_fields: dict[str, Any] = {"fence": lease.fence, "token": lease.token}
        until_ns = time.monotonic_ns() + int(lease.remaining() * 1e9)
        self.record("granted", lease.name, since_ns=since_ns, until_ns=until_ns, **lease_fields)
        try:
            yield
        finally:
            self.record("lost" if lease.lost else "released", lease.name, **lease_fields)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, event: HistoryEvent) -> HistoryEvent:
        line = _encode(event)
        if os.write(self._descriptor, line) != len(line):
            raise OSError(f"{self.path}: only a part of the event was written; is the disk full?")
        return event


class History:
    """A history file and the recorders that this process opened on it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.path.touch()
        self._recorders: list[Recorder] = []

    def recorder(self, worker: str) -> Recorder:
        """Return a new recorder for a worker; this history closes it."""
        recorder = Recorder(self.path, worker)
        self._recorders.append(recorder)
        return recorder

    def read(self) -> list[HistoryEvent]:
        """Return every event so far, in the order of time."""
        return read_history(self.path)

    def close(self) -> None:
        for recorder in self._recorders:
            recorder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Tail:
    """Reads a history while it grows."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._seen = 0

    def new(self) -> list[HistoryEvent]:
        """Return the events that were added since the last call, in the order in which they were written."""
        with self.path.open("rb") as file:
            file.seek(self._seen)
            data = file.read()
        whole = len(data) - len(data) % LINE_BYTES
        self._seen += whole
        return [_decode(line, f"{self.path}, new line") for line in data[:whole].split(b"\n")[:-1]]


def read_history(path: str | os.PathLike[str]) -> list[HistoryEvent]:
    """Return every event of the history in the file `path`, in the order of time.

    Leave out the last line if it is incomplete: a full disk or a crash of the machine may have torn it. Raise
    `ValueError` for any other line that is no event, because a history with holes proves nothing.
    """
    *lines, _torn = Path(path).read_bytes().split(b"\n")
    events = [_decode(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)]
    return sorted(events, key=lambda event: event.at_ns)


def _cut(detail: str | None) -> str | None:
    """Return the detail, shortened to fit: only people read it, so a long detail is no error."""
    return None if detail is None else detail[:DETAIL_LIMIT]


def _encode(event: HistoryEvent) -> bytes:
    fields = {name: value for name, value in asdict(event).items() if value is not None}
    # An unpaired surrogate, which UTF-8 cannot encode, becomes \udcXX, and JSON decodes that again.
    text = json.dumps(fields, ensure_ascii=False).encode("utf-8", "backslashreplace")
    if len(text) >= LINE_BYTES:
        raise ValueError(f"an event has at most {LINE_BYTES - 1} bytes: {text!r}")
    return text.ljust(LINE_BYTES - 1) + b"\n"


def _decode(line: bytes, place: str) -> HistoryEvent:
    try:
        event = HistoryEvent(**json.loads(line))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{place} is no event: {line!r}") from error
    if event.kind not in _KINDS:
        raise ValueError(f"{place} has an unknown kind: {event.kind!r}")
    return event
