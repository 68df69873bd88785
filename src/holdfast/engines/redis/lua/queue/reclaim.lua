-- Reclaim the messages of dead consumers, unless another client has checked within the interval.
--
-- KEYS[1]  the name's own key
-- ARGV[3]  interval_ms
-- ARGV[4]  grace_ms
-- ARGV[5]  postpone_ms
-- ARGV[6]  attempts_max
-- ARGV[7]  dead_max
--
-- Returns  {'reclaimed', checked, postponed, consumers, requeued, dead_lettered, next_ms}
--
-- Twin of rules/queue/consumers.py: reclaim_expired. A check that comes too early reads the record alone.

--@include queue/state.lua
if checked <= now and now < next_check then
  return { 'reclaimed', 0, 0, 0, 0, 0, math.max(1, math.ceil((next_check - now) / 1000)) }
end
--@include queue/consumer_read.lua
--@include queue/consumer_write.lua
--@include queue/texts.lua
--@include queue/message.lua
--@include queue/write.lua
--@include queue/requeue.lua
--@include queue/failures.lua
--@include queue/blame.lua
--@include queue/wake.lua
--@const COSTLY_BATCH_MAX = commands.queue.COSTLY_BATCH_MAX
--@const CHECK_LATE_US = rules.queue.consumers.CHECK_LATE_US
--@const CHECK_PAUSE_US = rules.queue.consumers.CHECK_PAUSE_US
--@const SHORTENED_MAX = rules.queue.consumers.SHORTENED_MAX
--@const CRASHED = rules.queue.state.CRASHED
--@const DEAD_LETTERED = rules.queue.state.DEAD_LETTERED
local interval, grace = ARGV[3] * 1000, ARGV[4] * 1000
local postponed = checked > 0 and (now < checked or now - next_check > math.max(2 * interval, CHECK_LATE_US))

-- The clock went back: limit every session to its ttl from now, otherwise dead consumers would live too long.
local shortened = {}
if now < checked then
  for _, token in ipairs(redis.call('ZRANGE', base .. ':expiries', 0, SHORTENED_MAX - 1)) do
    local consumer = get_consumer(token)
    if consumer and consumer[EXPIRES] > now + consumer[TTL] * 1000 then
      consumer[EXPIRES] = now + consumer[TTL] * 1000
      shortened[#shortened + 1] = { token, consumer }
    end
  end
end

local expired, ended, requeued, dead, ready, more, room = {}, {}, 0, 0, 0, false, COSTLY_BATCH_MAX
if not postponed then
  expired = redis.call('ZRANGEBYSCORE', base .. ':expiries', '-inf', int(now - grace), 'LIMIT', 0, COSTLY_BATCH_MAX)
end
local reclaimed, unfinished = {}, nil  -- token -> its entries that are reclaimed; a consumer that holds more than fit
for _, token in ipairs(expired) do
  if room == 0 then
    more = true
    break
  end
  room = room - 1  -- a consumer costs as much as a message, so both count
  local consumer = get_consumer(token) or { '', '', '', 0, 0, 0, 0, false, false, false }
  declare_dead(token, consumer)
  local held, entries, fences = redis.call('ZRANGE', base .. ':held:' .. token, 0, room, 'WITHSCORES'), {}, {}
  for i = 1, math.min(#held, 2 * room), 2 do
    entries[#entries + 1], fences[#fences + 1] = held[i], held[i + 1]
  end
  for i, text in ipairs(texts_of(entries)) do
    local message = text and read(entries[i], text)
    if message and after_consumer_death(message, consumer, fences[i], tonumber(ARGV[6])) then
      requeued = requeued + make_ready(message, 0)
    elseif message then
      dead, ready = dead + 1, ready + free_key(message.key)
    end
  end
  reclaimed[token] = entries
  if #held > 2 * room then
    unfinished, more = { token, consumer }, true
    break
  end
  room = room - #entries
  ended[#ended + 1] = { token, consumer }
end
more = more or #expired == COSTLY_BATCH_MAX

if #dead_letters > 0 then redis.call('ZCARD', base .. ':dead_order') end
check_types()
allow_at_maxmemory()
store()
for _, each in ipairs(shortened) do put_consumer(each[1], each[2]) end
for token, entries in pairs(reclaimed) do
  if #entries > 0 then
    redis.call('ZREM', base .. ':held:' .. token, unpack(entries))
    redis.call('HDEL', base .. ':messages', unpack(entries))
  end
end
for _, each in ipairs(ended) do remove_consumer(each[1], each[2]) end
if unfinished then put_consumer(unfinished[1], unfinished[2]) end

if postponed then
  next_check = now + ARGV[5] * 1000
else
  local soonest = redis.call('ZRANGE', base .. ':expiries', 0, 0, 'WITHSCORES')[2]
  local soon = soonest and math.max(now + CHECK_PAUSE_US, soonest + grace) or now + interval
  next_check = more and now or math.min(now + interval, soon)
end
checked = now
add_to_counter(CRASHED, requeued + dead)
add_to_counter(DEAD_LETTERED, dead)
store_dead_letters(tonumber(ARGV[7]))
wake_waiting(requeued + ready)
save(true)
publish_wakeups()
local next_ms = more and 1 or math.max(1, math.ceil((next_check - now) / 1000))
return { 'reclaimed', 1, postponed and 1 or 0, #ended, requeued, dead, next_ms }
