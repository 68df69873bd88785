-- Find out whether the caller has a waiter near the front; then its heartbeat counts for less time, and the next comes sooner.
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
