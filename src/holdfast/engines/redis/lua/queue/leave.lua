-- End a consumer session, and requeue its messages; no attempt is used.
--
-- KEYS[1]  the name's own key
-- ARGV[3]  token
--
-- Returns  1 | {'leave unfinished'} if the consumer holds more messages than one step requeues | {'unknown consumer'}
--
-- Twin of rules/queue/consumers.py: leave.

--@include queue/state.lua
--@include queue/consumer_read.lua
--@include queue/consumer_write.lua
--@include queue/texts.lua
--@include queue/message.lua
--@include queue/write.lua
--@include queue/requeue.lua
--@include queue/wake.lua
--@const RELEASED = rules.queue.state.RELEASED
local token = ARGV[3]
local consumer = live_consumer(token)
if not consumer then return { 'unknown consumer' } end
local held = base .. ':held:' .. token
local entries = redis.call('ZRANGE', held, 0, BATCH_MAX - 1)
local found, requeued, finished = texts_of(entries), 0, redis.call('ZCARD', held) <= BATCH_MAX
for i, entry in ipairs(entries) do
  if found[i] then requeued = requeued + requeue(entry, found[i]) end
end
redis.call('ZCARD', base .. ':expiries')
redis.call('ZCARD', base .. ':waiting')
check_types()
allow_at_maxmemory()
store()
if #entries > 0 then
  redis.call('HDEL', base .. ':messages', unpack(entries))
  redis.call('ZREM', held, unpack(entries))
end
if finished then
  remove_consumer(token, consumer)
else  -- the consumer sends no more heartbeats, so each step of the leave counts as a heartbeat
  consumer[EXPIRES] = now + consumer[TTL] * 1000
  put_consumer(token, consumer)
  redis.call('ZREM', base .. ':waiting', token)
end
add_to_counter(RELEASED, requeued)
wake_waiting(requeued)
save(finished)
publish_wakeups()
return finished and 1 or { 'leave unfinished' }
