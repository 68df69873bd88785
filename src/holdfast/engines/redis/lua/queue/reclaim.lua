-- Look for consumers that have died, unless somebody has looked just now; give others what they had.
--
-- KEYS[1]  the name's own key
-- ARGV[3]  interval_ms
-- ARGV[4]  grace_ms
-- ARGV[5]  amnesty_ms
-- ARGV[6]  attempts_max
-- ARGV[7]  dead_max
--
-- Returns  {'reaped', looked, amnesty, consumers, moved, died, next_ms}
--
-- Same law as rules/queue/consumers.py: reap. Asked too early, it looks at the record alone.

--@include queue/state.lua
if looked <= now and now < look then
  return { 'reaped', 0, 0, 0, 0, 0, math.max(1, math.ceil((look - now) / 1000)) }
end
--@include queue/messages.lua
--@include queue/blame.lua
local LATE_US, BREATH_US = 1000000, 100000
local interval, grace = ARGV[3] * 1000, ARGV[4] * 1000
local amnesty = looked > 0 and (now < looked or now - look > math.max(2 * interval, LATE_US))

-- The clock went back: nobody's time ends later than its ttl from now, else the dead would live until then.
local forward = {}
if now < looked then
  for _, token in ipairs(redis.call('ZRANGE', base .. ':ends', 0, PART - 1)) do
    local who = member(token)
    if who and who[ENDS] > now + who[TTL] * 1000 then
      who[ENDS] = now + who[TTL] * 1000
      forward[#forward + 1] = { token, who }
    end
  end
end

local late, ended, moved, died, ready, more, room = {}, {}, 0, 0, 0, false, COSTLY_BATCH_MAX
if not amnesty then
  late = redis.call('ZRANGEBYSCORE', base .. ':ends', '-inf', int(now - grace), 'LIMIT', 0, COSTLY_BATCH_MAX)
end
local taken, crowded = {}, nil  -- token -> its entries that go; who has more than there is room for
for _, token in ipairs(late) do
  if room == 0 then
    more = true
    break
  end
  room = room - 1  -- a consumer costs as much as a message, so both count
  local who = member(token) or { '', '', '', 0, 0, 0, 0, false, false, false }
  falls(token, who)
  local held, entries, fences = redis.call('ZRANGE', base .. ':h:' .. token, 0, room, 'WITHSCORES'), {}, {}
  for i = 1, math.min(#held, 2 * room), 2 do
    entries[#entries + 1], fences[#fences + 1] = held[i], held[i + 1]
  end
  for i, text in ipairs(texts_of(entries)) do
    local message = text and read(entries[i], text)
    if message and mourned(message, who, fences[i], tonumber(ARGV[6])) then
      moved = moved + put(message, 0)
    elseif message then
      died, ready = died + 1, ready + follow(message.key)
    end
  end
  taken[token] = entries
  if #held > 2 * room then
    crowded, more = { token, who }, true
    break
  end
  room = room - #entries
  ended[#ended + 1] = { token, who }
end
more = more or #late == COSTLY_BATCH_MAX

if #graves > 0 then redis.call('ZCARD', base .. ':died') end
check()
make_way()
store()
for _, each in ipairs(forward) do put_member(each[1], each[2]) end
for token, entries in pairs(taken) do
  if #entries > 0 then
    redis.call('ZREM', base .. ':h:' .. token, unpack(entries))
    redis.call('HDEL', base .. ':m', unpack(entries))
  end
end
for _, each in ipairs(ended) do drop_member(each[1], each[2]) end
if crowded then put_member(crowded[1], crowded[2]) end

if amnesty then
  look = now + ARGV[5] * 1000
else
  local soonest = redis.call('ZRANGE', base .. ':ends', 0, 0, 'WITHSCORES')[2]
  local soon = soonest and math.max(now + BREATH_US, soonest + grace) or now + interval
  look = more and now or math.min(now + interval, soon)
end
looked = now
count('crashed', moved + died)
count('dead_lettered', died)
close_graves(tonumber(ARGV[7]))
ring(moved + ready)
save(true)
wake()
local next_ms = more and 1 or math.max(1, math.ceil((look - now) / 1000))
return { 'reaped', 1, amnesty and 1 or 0, #ended, moved, died, next_ms }
