"""The vocabulary of engines: frozen questions and answers.

Named tuples, because they are quick to make and quick to import. What says nothing but its name carries that name, so
that it is neither empty nor equal to another.

An engine answers one command in one atomic step. Every command may be sent twice: it carries the token of the attempt
it belongs to, and the second answer is the same as the first. Times inside are milliseconds; fences are integers.
"""

from __future__ import annotations

from typing import NamedTuple


class Acquire(NamedTuple):
    """Give me the lease; with `wait`, keep me a place in the queue if you cannot.

    Sent again by the holder it answers the same fence and restarts the ttl. Sent again by a waiter it keeps the place,
    confirms an offer, and tells the engine that the waiter lives. Sent by a waiter without `wait` it is the last word:
    granted now, or out of the queue.
    """

    name: str
    token: str
    owner: str
    ttl_ms: int
    wait: bool


class Renew(NamedTuple):
    """Restart the ttl of a lease that is still mine. A lapsed lease is never brought back."""

    name: str
    token: str
    ttl_ms: int


class Release(NamedTuple):
    """Give the lease back; `to` names the waiter (by token) that is to have it next, if it still waits.

    `entomb` asks the engine to remember the token as ended: needed when an acquire was sent more than once, because the
    first copy may still be on its way.
    """

    name: str
    token: str
    entomb: bool = False
    to: str = ""


class Undo(NamedTuple):
    """Nobody owns what this token may have got: end it, and refuse it from now on."""

    name: str
    token: str


class Break(NamedTuple):
    """End the lease under this fence by force, and say why to its holder.

    The fence is part of the question, so that a second copy of the command cannot hit the next holder.
    """

    name: str
    fence: int
    reason: str


class Mark(NamedTuple):
    """This client lives, and so do its waiters under this name. Also brings the name to the present."""

    name: str


class Show(NamedTuple):
    """Who holds, who waits. Changes nothing."""

    name: str


class Hit(NamedTuple):
    """May this be done, so often and so fast? Counted at once if it may, in every window; else in none.

    `rates` are pairs of how many and in how many microseconds. `smooth` lets the allowance grow back evenly, instead of
    looking at the last window. Without `take` nothing is counted. It is the one command that is never sent twice: a
    lost answer counts as used.
    """

    name: str
    rates: tuple[tuple[int, int], ...]
    smooth: bool
    cost: int
    take: bool

    @property
    def shelf(self) -> str:
        """Where the counts are kept: windows of other lengths are other counts, the numbers may change."""
        return f"{'g' if self.smooth else 'l'}:{','.join(str(period_us) for _, period_us in self.rates)}"


class Forget(NamedTuple):
    """Nothing was counted under this name so far."""

    name: str
    shelf: str


class Reserve(NamedTuple):
    """Put this amount aside for a while, if what was spent and is put aside leaves room for it.

    `limit` is what may be spent in a period, or -1 for any amount.
    """

    name: str
    token: str
    amount: int
    limit: int
    period_ms: int
    hold_ms: int
    shelf: str = "b"


class Settle(NamedTuple):
    """So much was spent of what this token had put aside in the period that began then; the rest is free again."""

    name: str
    token: str
    began_us: int
    actual: int
    shelf: str = "b"


class Balance(NamedTuple):
    """What was spent and what is put aside. Changes nothing."""

    name: str
    period_ms: int
    shelf: str = "b"


class Keep(NamedTuple):
    """Keep this note under the name for a while."""

    name: str
    note: str
    window_ms: int
    shelf: str = "o"


class Seen(NamedTuple):
    """Is a note kept there? Changes nothing."""

    name: str
    shelf: str = "o"


class Begin(NamedTuple):
    """Give me the lease, unless a note says that its work was done; in one step."""

    ask: Acquire

    @property
    def name(self) -> str:
        return self.ask.name


class Finish(NamedTuple):
    """Give the lease back and keep a note that its work was done; in one step, and only if it was mine to give."""

    end: Release
    keep: Keep

    @property
    def name(self) -> str:
        return self.end.name


class Claim(NamedTuple):
    """Give me the lease of an entry and put it on these shelves of its directory; in one step.

    With a `limit`, only if so many others do not stand on the shelf `group` already; -1 is no limit. What is kept for
    somebody is given to nobody of another `label`.
    """

    ask: Acquire
    shelves: tuple[str, ...]
    group: str = ""
    limit: int = -1
    label: str = ""

    @property
    def name(self) -> str:
        return self.ask.name


class Quit(NamedTuple):
    """Give the lease of an entry back and take it off these shelves; in one step, and only if it was mine to give.

    With an `heir`, it is kept for whoever has that label, for so long.
    """

    end: Release
    shelves: tuple[str, ...]
    heir: str = ""
    heir_ms: int = 0

    @property
    def name(self) -> str:
        return self.end.name


class List(NamedTuple):
    """Who holds what on this shelf of the directory: entries that begin so and come after that one, in order."""

    name: str
    shelf: str
    prefix: str
    after: str
    limit: int


class Post(NamedTuple):
    """Put a letter into the box of whoever holds the entry; `letter` tells two copies apart from two letters."""

    name: str
    letter: str
    text: str


class Fetch(NamedTuple):
    """Take all letters out of the box of this token."""

    name: str
    token: str


Entry = Claim | Quit | List | Post | Fetch
Tally = Hit | Forget | Reserve | Settle | Balance | Keep | Seen
Command = Acquire | Renew | Release | Undo | Break | Mark | Show | Begin | Finish | Entry | Tally


class Granted(NamedTuple):
    """The lease is yours, under this fence."""

    fence: int


class Busy(NamedTuple):
    """Somebody else has it. `position` counts the waiters ahead of you; `None` means that you are not in the queue."""

    owner: str
    fence: int
    remaining_ms: int
    position: int | None


class Refused(NamedTuple):
    """This token has ended (released, undone or broken) and will never hold again."""

    reason: str


class Renewed(NamedTuple):
    """The ttl runs anew."""

    kind: str = "renewed"


class Released(NamedTuple):
    """The lease is free, or was already freed by this same token."""

    kind: str = "released"


class NotHeld(NamedTuple):
    """This token does not hold the name. `reason`: expired, released, undone, broken; `detail` is for people."""

    reason: str
    detail: str = ""


class Done(NamedTuple):
    """It is so now."""

    kind: str = "done"


class Marked(NamedTuple):
    """Heard. The present lease or offer ends in `remaining_ms` unless it is renewed; 0 if there is none.

    `offered` is the token of a waiter of this client to whom the lease is offered just now, or empty.
    """

    remaining_ms: int
    offered: str = ""


class Seat(NamedTuple):
    """One holder or waiter, as people see it."""

    owner: str
    token: str
    fence: int
    since_ms: int
    remaining_ms: int


class Standing(NamedTuple):
    """Who holds a name and who waits for it, in order. `offered`: the holder has not confirmed yet."""

    fence: int
    holder: Seat | None
    offered: bool
    waiters: tuple[Seat, ...]


class Decided(NamedTuple):
    """Whether it may be done. `remaining` of `limit` is left in the window that matters most just now.

    `retry_us`: so long from now it would be refused again; 0 if it was not. `reset_us`: then that window is empty.
    """

    allowed: bool
    remaining: int
    limit: int
    retry_us: int
    reset_us: int


class Spent(NamedTuple):
    """How an account stands. `ok`: what was asked for was done. The period ends in `reset_us`; 0 if none has begun.

    `retry_us` tells when something that is put aside may be free again, if it is not spent.
    """

    ok: bool
    spent: int
    reserved: int
    began_us: int
    reset_us: int
    retry_us: int = 0


class Full(NamedTuple):
    """So many others stand on that shelf: there is no room."""

    others: int


class Kept(NamedTuple):
    """It is kept for whoever has this label, for so much longer."""

    heir: str
    remaining_ms: int


class Letters(NamedTuple):
    """Pairs of a letter's own token and its text, in the order in which they came."""

    letters: tuple[tuple[str, str], ...]


class Listing(NamedTuple):
    """Entries that are held, in order, with their holders. `last`: where to go on; empty if that was all."""

    entries: tuple[tuple[str, Seat], ...]
    last: str


class Finished(NamedTuple):
    """The note that is kept; `known` is false if there is none."""

    note: str
    known: bool


Answer = (
    Granted
    | Busy
    | Refused
    | Renewed
    | Released
    | NotHeld
    | Done
    | Marked
    | Standing
    | Decided
    | Spent
    | Finished
    | Full
    | Listing
    | Kept
    | Letters
)
