-- Set `near` if one of the first WATCHERS waiters is the caller's, and let its heartbeat expire after NEAR_HEARTBEAT_MS:
-- such a client sends heartbeats more often.
--
-- KEYS, ARGV  those of the script
--
-- Returns  nothing; it sets the local `near`, which is already true if the caller has an offer
--
-- Twin of rules/lease.py: waiter_heartbeat, and of rules/pool.py: heartbeat.

--@const WATCHERS = rules.trust.WATCHERS
--@const NEAR_HEARTBEAT_MS = rules.trust.NEAR_HEARTBEAT_MS
for _, token in ipairs(waiting > 0 and redis.call('ZRANGE', base .. ':line', 0, WATCHERS - 1) or {}) do
  local text = redis.call('HGET', base .. ':waiters', token)
  near = near or (text and cmsgpack.unpack(text) == caller)
end
if near then redis.call('ZADD', base .. ':heartbeats', int(now + NEAR_HEARTBEAT_MS * 1000), caller) end
