"""The vocabulary of engines: frozen questions and answers.

Named tuples, because they are quick to make and quick to import. What says nothing but its name carries that name, so
that it is neither empty nor equal to another.

An engine answers one command in one atomic step. Every command but `Hit` may be sent twice: it carries the token of the
attempt it belongs to, and the second answer is the same as the first. (Whoever sends a `Receive` again says what it knows,
and is given what it does not.) Times inside are milliseconds unless their names say otherwise; fences are integers.
"""

from __future__ import annotations

from holdfast.commands.lease import (
    Acquire,
    Break,
    Busy,
    Done,
    Granted,
    Mark,
    Marked,
    NotHeld,
    Nudge,
    Refused,
    Release,
    Released,
    Renew,
    Renewed,
    Seat,
    Show,
    Standing,
    Undo,
)
from holdfast.commands.limit import Balance, Decided, Forget, Hit, Reserve, Settle, Spent
from holdfast.commands.once import Begin, Finish, Finished, Keep, Seen
from holdfast.commands.pool import (
    POOL,
    READ,
    RWLOCK,
    SEMAPHORE,
    WHOLE_PPM,
    WRITE,
    Borrow,
    BreakItem,
    ChangePool,
    CoolItem,
    Extend,
    GetPoolStats,
    ItemSnapshot,
    ItemsStillLent,
    PoolChanged,
    PoolHeartbeat,
    PoolSnapshot,
    Return,
    UndoBorrow,
    UnknownItems,
)
from holdfast.commands.queue import Leave, LeaveUnfinished, QueueAnswer, QueueCommand, Receive, Received
from holdfast.commands.registry import (
    AtCapacity,
    ClaimEntry,
    EntryPage,
    FetchMail,
    HandedOff,
    ListEntries,
    MailboxMessages,
    ReleaseEntry,
    SendToOwner,
)

Tally = Hit | Forget | Reserve | Settle | Balance | Keep | Seen
Entry = ClaimEntry | ReleaseEntry | ListEntries | SendToOwner | FetchMail
Command = (
    Tally
    | Entry
    | Begin
    | Finish
    | Acquire
    | Renew
    | Release
    | Undo
    | Break
    | Mark
    | Show
    | Borrow
    | Extend
    | Return
    | UndoBorrow
    | BreakItem
    | CoolItem
    | ChangePool
    | PoolHeartbeat
    | GetPoolStats
    | QueueCommand
)
Asking = Acquire | Borrow | Receive
Giving = Release | Return | Finish | ReleaseEntry | Leave
# Commands whose sender may have to wait for an answer that it likes.
ASKING: frozenset[type] = frozenset((Acquire, Borrow, Receive))
# Answers with a `position`: whoever has one stands in a line now, where it may be rung.
LINED_UP: frozenset[type] = frozenset((Busy, Received))

Answer = (
    Decided
    | AtCapacity
    | HandedOff
    | MailboxMessages
    | EntryPage
    | Spent
    | Finished
    | Granted
    | Busy
    | Refused
    | Renewed
    | Released
    | NotHeld
    | Done
    | Marked
    | Standing
    | PoolSnapshot
    | PoolChanged
    | ItemsStillLent
    | UnknownItems
    | QueueAnswer
)

__all__ = [
    "ASKING",
    "LINED_UP",
    "POOL",
    "READ",
    "RWLOCK",
    "SEMAPHORE",
    "WHOLE_PPM",
    "WRITE",
    "Acquire",
    "Answer",
    "Asking",
    "AtCapacity",
    "Balance",
    "Begin",
    "Borrow",
    "Break",
    "BreakItem",
    "Busy",
    "ChangePool",
    "ClaimEntry",
    "Command",
    "CoolItem",
    "Decided",
    "Done",
    "Entry",
    "EntryPage",
    "Extend",
    "FetchMail",
    "Finish",
    "Finished",
    "Forget",
    "GetPoolStats",
    "Giving",
    "Granted",
    "HandedOff",
    "Hit",
    "ItemSnapshot",
    "ItemsStillLent",
    "Keep",
    "Leave",
    "LeaveUnfinished",
    "ListEntries",
    "MailboxMessages",
    "Mark",
    "Marked",
    "NotHeld",
    "Nudge",
    "PoolChanged",
    "PoolHeartbeat",
    "PoolSnapshot",
    "QueueAnswer",
    "QueueCommand",
    "Receive",
    "Received",
    "Refused",
    "Release",
    "ReleaseEntry",
    "Released",
    "Renew",
    "Renewed",
    "Reserve",
    "Return",
    "Seat",
    "Seen",
    "SendToOwner",
    "Settle",
    "Show",
    "Spent",
    "Standing",
    "Tally",
    "Undo",
    "UndoBorrow",
    "UnknownItems",
]
