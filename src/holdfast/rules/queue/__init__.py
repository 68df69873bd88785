"""Rules of message queues: one pure function per command; `rules/table.py` maps commands to them.

These functions decide when a message is redelivered ("visibility timeout" in other queues). Look here if a message is
redelivered too early or too late:

- `consumers.reclaim_expired` reclaims the messages of dead consumers: after expiry of the session plus a grace, or at
  once with proof of death; after a pause of the engine it postpones the check. `_after_consumer_death` decides between
  requeue, quarantine and dead letter. On Redis: `lua/queue/reclaim.lua` and `blame.lua`.
- `consumers.take_over`: redelivery of one key without the grace. On Redis: `lua/queue/take_over.lua`.
- `consumers.heartbeat`: the deadline of a session. On Redis: `lua/queue/heartbeat.lua`. The keeper sends the heartbeat
  (`core/keeper/keeper.py`, `core/queue/session.py`).
- `consumers.leave`: requeue at the end of a consumer. On Redis: `lua/queue/leave.lua`.
- `messages.record_outcomes`: retry with its delay, and release. On Redis: `lua/queue/outcomes.lua`. The client computes
  the delay of a retry (`core/queue/outcomes.py`, `Backoff.delay_ms`).
- `messages.receive`: makes delayed messages ready when their delay ends. It delivers held messages again to the same
  consumer if the answer that brought them was lost (`_compare_known`). On Redis: `lua/queue/receive.lua`.
- The interval and the grace of a check: `core/queue/queue.py`, `reclaim_command`. SQLite finds proof of death in
  `engines/sqlite/dispatch.py` (`_apply_to_queue`) and `engines/sqlite/engine.py` (`_look_at`).
- The consumer's own view of its session: `core/queue/session.py`. A worker that stops gives messages back to the queue,
  also while a handler thread still runs after the stop grace: `core/queue/worker.py` (`_wind_down`).
"""
