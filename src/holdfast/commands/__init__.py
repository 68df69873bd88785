"""Commands and answers: the frozen messages between the core and an engine.

They are named tuples, because those are quick to make and quick to import. An answer without data carries its own name,
so that it is not an empty tuple and not equal to another answer.

An engine answers one command in one atomic step. Every command but `Hit` may be sent twice: it carries the token of the
attempt it belongs to, and the second answer is the same as the first. (A `Receive` lists the messages that its consumer
knows, and a second copy delivers the others.) Times are milliseconds unless their names say otherwise; fences are
integers.
"""

from __future__ import annotations

from holdfast.commands.lease import (
    Acquire,
    Break,
    Busy,
    Done,
    Granted,
    HeartbeatReceived,
    LeaseInfo,
    LeaseParty,
    NotHeld,
    Refused,
    Released,
    ReleaseLease,
    Renew,
    Renewed,
    Show,
    Undo,
    WaiterHeartbeat,
    WakeHolder,
)
from holdfast.commands.limit import (
    BudgetBalance,
    GetBalance,
    Hit,
    LimitDecision,
    Reserve,
    ResetCounter,
    Settle,
    UndoReserve,
)
from holdfast.commands.once import BeginOnce, DoneMarker, FinishOnce, IsDone, MarkDone
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

CounterCommand = Hit | ResetCounter | Reserve | Settle | UndoReserve | GetBalance | MarkDone | IsDone
RegistryCommand = ClaimEntry | ReleaseEntry | ListEntries | SendToOwner | FetchMail
Command = (
    CounterCommand
    | RegistryCommand
    | BeginOnce
    | FinishOnce
    | Acquire
    | Renew
    | ReleaseLease
    | Undo
    | Break
    | WaiterHeartbeat
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
AcquireCommand = Acquire | Borrow | Receive
ReleaseCommand = ReleaseLease | Return | FinishOnce | ReleaseEntry | Leave
# Commands whose sender may wait: with `wait`, it gets a place in the waiting line.
WAITABLE: frozenset[type] = frozenset((Acquire, Borrow, Receive))
# Answers with a `position`: a sender that has one stands in a waiting line now, and may be woken.
POSITIONED: frozenset[type] = frozenset((Busy, Received))

Answer = (
    LimitDecision
    | AtCapacity
    | HandedOff
    | MailboxMessages
    | EntryPage
    | BudgetBalance
    | DoneMarker
    | Granted
    | Busy
    | Refused
    | Renewed
    | Released
    | NotHeld
    | Done
    | HeartbeatReceived
    | LeaseInfo
    | PoolSnapshot
    | PoolChanged
    | ItemsStillLent
    | UnknownItems
    | QueueAnswer
)

__all__ = [
    "POOL",
    "POSITIONED",
    "READ",
    "RWLOCK",
    "SEMAPHORE",
    "WAITABLE",
    "WHOLE_PPM",
    "WRITE",
    "Acquire",
    "AcquireCommand",
    "Answer",
    "AtCapacity",
    "BeginOnce",
    "Borrow",
    "Break",
    "BreakItem",
    "BudgetBalance",
    "Busy",
    "ChangePool",
    "ClaimEntry",
    "Command",
    "CoolItem",
    "CounterCommand",
    "Done",
    "DoneMarker",
    "EntryPage",
    "Extend",
    "FetchMail",
    "FinishOnce",
    "GetBalance",
    "GetPoolStats",
    "Granted",
    "HandedOff",
    "HeartbeatReceived",
    "Hit",
    "IsDone",
    "ItemSnapshot",
    "ItemsStillLent",
    "LeaseInfo",
    "LeaseParty",
    "Leave",
    "LeaveUnfinished",
    "LimitDecision",
    "ListEntries",
    "MailboxMessages",
    "MarkDone",
    "NotHeld",
    "PoolChanged",
    "PoolHeartbeat",
    "PoolSnapshot",
    "QueueAnswer",
    "QueueCommand",
    "Receive",
    "Received",
    "Refused",
    "RegistryCommand",
    "ReleaseCommand",
    "ReleaseEntry",
    "ReleaseLease",
    "Released",
    "Renew",
    "Renewed",
    "Reserve",
    "ResetCounter",
    "Return",
    "SendToOwner",
    "Settle",
    "Show",
    "Undo",
    "UndoBorrow",
    "UndoReserve",
    "UnknownItems",
    "WaiterHeartbeat",
    "WakeHolder",
]
