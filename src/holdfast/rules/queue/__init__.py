"""Rules of message queues: one pure function per command, and the table `QUEUE_RULES`.

Redelivery of a message ("visibility timeout" in other queues) is decided in these places; look here if a message is
redelivered too early or too late:

- `consumers.reclaim_expired`: reclaim of the messages of dead consumers, after expiry of the session plus a grace, or
  at once with proof of death; a check after a pause of the engine is postponed. `_after_consumer_death` decides between
  requeue, quarantine and dead letter. On Redis: `lua/queue/reclaim.lua` and `blame.lua`.
- `consumers.take_over`: redelivery of one key without the grace. On Redis: `lua/queue/take_over.lua`.
- `consumers.heartbeat`: the deadline of a session. On Redis: `lua/queue/heartbeat.lua`. The keeper sends the heartbeat
  (`core/keeper/keeper.py`, `core/queue/session.py`).
- `consumers.leave`: requeue at the end of a consumer. On Redis: `lua/queue/leave.lua`.
- `messages.record_outcomes`: retry with its delay, and release. On Redis: `lua/queue/outcomes.lua`. The client computes
  the delay of a retry (`core/queue/outcomes.py`, `Backoff.delay_ms`).
- `messages.receive`: delivers held messages again if the answer that brought them was lost (`_compare_known`). On
  Redis: `lua/queue/receive.lua`.
- The interval and the grace of a check: `core/queue/queue.py`, `reclaim_command`. SQLite finds proof of death in
  `engines/sqlite/engine.py`.
- The consumer's own view of its session, and when a worker starts or abandons a message: `core/queue/session.py` and
  `core/queue/worker.py`.
"""

from holdfast.commands.queue import (
    ConsumerHeartbeat,
    GetDeadLetter,
    Join,
    Leave,
    ListDeadLetters,
    ListKeys,
    Publish,
    Purge,
    Receive,
    ReclaimExpired,
    RecordOutcomes,
    Redrive,
    TakeOver,
)
from holdfast.commands.queue_admin import CheckConsistency, GetStats, ListConsumers, Peek
from holdfast.rules.queue.consumers import heartbeat, join, leave, list_keys, reclaim_expired, take_over
from holdfast.rules.queue.dead_letters import get_dead_letter, list_dead_letters, purge, redrive
from holdfast.rules.queue.inspection import check_consistency, get_stats, list_consumers, peek
from holdfast.rules.queue.messages import QueueRule, publish, receive, record_outcomes

QUEUE_RULES: dict[type, QueueRule] = {
    Publish: publish,
    Join: join,
    ConsumerHeartbeat: heartbeat,
    Leave: leave,
    Receive: receive,
    RecordOutcomes: record_outcomes,
    ReclaimExpired: reclaim_expired,
    TakeOver: take_over,
    ListKeys: list_keys,
    ListDeadLetters: list_dead_letters,
    GetDeadLetter: get_dead_letter,
    Redrive: redrive,
    Purge: purge,
    GetStats: get_stats,
    ListConsumers: list_consumers,
    Peek: peek,
    CheckConsistency: check_consistency,
}
