-- Redeliver the first message of a key to this consumer, without a grace, if its holder's session has expired.
--
-- KEYS[1]  the name's own key
-- ARGV[3]  token
-- ARGV[4]  key
-- ARGV[5]  attempts_max
-- ARGV[6]  dead_max
--
-- Returns  {'received', …} as queue/receive.lua | {'not taken over', place, label, fence} | {'unknown consumer'}
--
-- Twin of rules/queue/consumers.py: take_over. In a long lane the cost grows with the message's distance from its front.

--@include queue/state.lua
--@include queue/consumer_read.lua
--@include queue/consumer_write.lua
--@include queue/message.lua
--@include queue/write.lua
--@include queue/requeue.lua
--@include queue/failures.lua
--@include queue/blame.lua
--@include queue/wake.lua
--@const CHECK_LATE_US = rules.queue.consumers.CHECK_LATE_US
--@const DELAYED = commands.queue.DELAYED
--@const HELD = commands.queue.HELD
--@const DEAD = commands.queue.DEAD
--@const CRASHED = rules.queue.state.CRASHED
--@const DEAD_LETTERED = rules.queue.state.DEAD_LETTERED
--@const RECEIVED = rules.queue.state.RECEIVED
local token, key = ARGV[3], ARGV[4]
if not live_consumer(token) then return { 'unknown consumer' } end
local entry, holder = string.match(redis.call('HGET', base .. ':heads', key) or '', '^(%S+) ?(.*)$')
local text = entry and redis.call('HGET', base .. ':messages', entry)
if entry and not text then  -- another program has deleted the message: the key's next message becomes its head
  local ready = free_key(key)
  check_types()
  allow_at_maxmemory()
  store()
  wake_waiting(ready)
  save()
  publish_wakeups()
end
if not text then return { 'not taken over', '', '', '0' } end

local next_ms = due_ms()
local function received(delivered, delivery_fence, content)
  return { 'received', -1, next_ms, 0, { int(delivery_fence) }, {}, delivered, content }
end

-- Return whether the holder may be alive although its session expired: its heartbeats may be missing because the server was
-- away. A long time without a check, or a postponed check, shows that.
local function may_be_alive(ttl)
  if checked == 0 then return false end
  if now < next_check then return now < checked or next_check - checked >= math.floor(ttl / 2) end
  return now - next_check > math.max(math.floor(ttl / 3), CHECK_LATE_US)
end

local held_key, message, lane, size, consumer = base .. ':held:' .. token, read(entry, text), nil, nil, nil
local before = holder ~= '' and redis.call('ZSCORE', base .. ':held:' .. holder, entry) or 0
if holder == token then return received(entry, before, text) end  -- a second copy of the command
if holder == '' then
  if redis.call('ZSCORE', base .. ':delayed', entry) then return { 'not taken over', DELAYED, '', '0' } end
  lane = lane_of(message)
  size = redis.call('LLEN', base .. ':ready:' .. lane)
else
  consumer = get_consumer(holder)
  if consumer and not consumer[BLAME] and (consumer[EXPIRES] > now or may_be_alive(consumer[TTL] * 1000)) then
    return { 'not taken over', HELD, consumer[LABEL], int(before) }
  end
  add_to_counter(CRASHED, 1)
end

local delivered, content, ready = nil, nil, 0
if consumer then
  declare_dead(holder, consumer)
  redis.call('ZCARD', base .. ':expiries')
end
if consumer and not after_consumer_death(message, consumer, before, tonumber(ARGV[5])) then
  add_to_counter(DEAD_LETTERED, 1)
  ready = free_key(key)
  redis.call('ZCARD', base .. ':dead_order')
else
  content = text_of(message)
  delivered = new_entry(content, key)
  set_head(key, delivered .. ' ' .. token)
  add_to_counter(RECEIVED, 1)
end
redis.call('ZCARD', held_key)
check_types()

allow_at_maxmemory()
store()
if lane then
  redis.call('LREM', base .. ':ready:' .. lane, 1, entry)
  if size <= 1 then remove_lane(lane) end
else
  redis.call('ZREM', base .. ':held:' .. holder, entry)
end
redis.call('HDEL', base .. ':messages', entry)
if consumer then put_consumer(holder, consumer) end
store_dead_letters(tonumber(ARGV[6]))
local delivery_fence = delivered and next_fence(1)
if delivered then
  redis.call('ZADD', held_key, delivery_fence, delivered)
  redis.call('ZREM', base .. ':waiting', token)
end
wake_waiting(ready)
save()
publish_wakeups()
return delivered and received(delivered, delivery_fence, content) or { 'not taken over', DEAD, '', '0' }
