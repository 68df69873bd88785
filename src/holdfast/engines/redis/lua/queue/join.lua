-- Start a consumer session, or restart the ttl of the same one.
--
-- KEYS[1]  the name's own key
-- ARGV[3]  token
-- ARGV[4]  holder
-- ARGV[5]  label
-- ARGV[6]  ttl_ms
-- ARGV[7]  keeps_messages   1 if the consumer holds its messages for a long time
-- ARGV[8]  announce_expiry  1 to store a key that expires with the session, so that the server publishes its expiry
--
-- Returns  fence | {'unknown consumer'} if the consumer was declared dead
--
-- Twin of rules/queue/consumers.py: join.

--@include queue/state.lua
--@include queue/consumer_read.lua
--@include queue/consumer_write.lua
--@include queue/record_write.lua
local ttl = tonumber(ARGV[6])
local consumer = get_consumer(ARGV[3])
if consumer and consumer[BLAME] then return { 'unknown consumer' } end
if consumer then
  consumer[TTL], consumer[EXPIRES] = ttl, now + ttl * 1000
else
  consumer = {
    ARGV[1], ARGV[4], ARGV[5], next_fence(1), ttl, now, now + ttl * 1000, false, ARGV[7] == '1', ARGV[8] == '1',
  }
end
allow_at_maxmemory()  -- a consumer frees memory: a queue that fills the server must not keep it out
put_consumer(ARGV[3], consumer)
save()
return int(consumer[FENCE])
