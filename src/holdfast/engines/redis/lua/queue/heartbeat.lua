-- Extend a consumer session, also if the heartbeat is late.
--
-- KEYS[1]  the name's own key
-- ARGV[3]  token
-- ARGV[4]  ttl_ms
--
-- Returns  1 | {'unknown consumer'}
--
-- Twin of rules/queue/consumers.py: heartbeat.

--@include queue/state.lua
--@include queue/consumer_read.lua
--@include queue/consumer_write.lua
--@include queue/record_write.lua
local consumer = live_consumer(ARGV[3])
if not consumer then return { 'unknown consumer' } end
consumer[TTL] = tonumber(ARGV[4])
consumer[EXPIRES] = now + consumer[TTL] * 1000
allow_at_maxmemory()
put_consumer(ARGV[3], consumer)
return 1
