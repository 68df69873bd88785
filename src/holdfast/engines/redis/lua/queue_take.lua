-- Give what there is; ring others if more is left than was taken.
--
-- KEYS[1]  the name's own key
-- ARGV[3]  token
-- ARGV[4]  most
-- ARGV[5]  wait    1 to be rung if there is nothing
-- ARGV[6]  idle    1 if the consumer has nothing
-- ARGV[7]  lanes   how many; they follow, and then, if it says what it has: the word `known` and the entries
--
-- Returns  {'taken', position or -1, next_ms, drain, fence, entry, text…}: fences count up from the first |
--          {'unknown consumer'}
--
-- Same law as rules/queue.py: take.

--@include queue_depot.lua
--@include queue_letters.lua
local CALL_US = 30000000
local token, most, wanted = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[7])
local mine, suspects, past_lanes = base .. ':h:' .. token, base .. ':s:' .. SUSPECTS, 8 + wanted
local who = member(token)
if not who then return { 'unknown consumer' } end
local changed = false

local due = redis.call('ZRANGEBYSCORE', base .. ':due', '-inf', int(now), 'LIMIT', 0, AT_ONCE)
if #due > 0 then
  for i, text in ipairs(texts_of(due)) do
    if text then put(read(due[i], text), 0) end
  end
  check()
  make_way()
  store()
  redis.call('ZREM', base .. ':due', unpack(due))
  redis.call('HDEL', base .. ':m', unpack(due))
  changed = true
end

-- What is with the consumer, and it does not know: an answer was lost.
local found, forgotten, suspect = {}, false, false
if ARGV[past_lanes] then
  local known, first = {}, past_lanes + 1
  for i = first, #ARGV do known[ARGV[i]] = true end
  for _, entry in ipairs(redis.call('ZRANGE', mine, 0, #ARGV - first + AT_ONCE)) do
    if not known[entry] and #found < most then found[#found + 1] = entry end
  end
  forgotten = #found > 0
end

local emptied = {}  -- how many go from the front of a lane
if not forgotten then
  if ARGV[6] == '1' and most > 0 then
    found = redis.call('LRANGE', suspects, 0, 0)
    suspect = #found > 0
    if suspect then emptied[SUSPECTS] = 1 end
  end
  for i = 8, past_lanes - 1 do
    if not suspect and #found < most and not emptied[ARGV[i]] then
      local line = redis.call('LRANGE', base .. ':s:' .. ARGV[i], 0, most - #found - 1)
      for _, entry in ipairs(line) do found[#found + 1] = entry end
      if #line > 0 then emptied[ARGV[i]] = #line end
    end
  end
end

local answer, held = {}, {}
if #found > 0 then
  for i, text in ipairs(texts_of(found)) do
    if text then
      answer[#answer + 1] = found[i]
      answer[#answer + 1] = text
      held[#held + 1] = found[i]
      held[#held + 1] = found[i]
    end
  end
end
if not forgotten and #found > 0 then
  redis.call('ZCARD', mine)
  make_way()
  each_part(held, function(...) redis.call('ZADD', mine, ...) end)
  for lane, many in pairs(emptied) do redis.call('LTRIM', base .. ':s:' .. lane, many, -1) end
  count('taken', #answer / 2)
  if suspect then called = '' end
end
if who[ENDS] <= now then  -- late, but not taken for dead: whoever speaks lives
  who[ENDS] = now + who[TTL] * 1000
  make_way()
  put_member(token, who)
end

local position = -1
if ARGV[5] == '1' and #answer == 0 then
  ticket = ticket + 1
  make_way()  -- whoever waits will free memory
  if redis.call('ZADD', base .. ':hungry', 'NX', ticket, token) == 1 then changed = true end
  position = redis.call('ZRANK', base .. ':hungry', token)
else
  redis.call('ZREM', base .. ':hungry', token)
end

local drain = 0
if redis.call('LLEN', suspects) > 0 and (called == '' or called == token or called_until <= now) then
  drain = 1
  if called ~= token or called_until <= now then
    called, called_until, changed = token, now + CALL_US, true
  end
end
local first = 0
if #answer > 0 then first, changed = next_fence(#answer / 2), true end
local left = 0
for i = 8, past_lanes - 1 do left = left + redis.call('LLEN', base .. ':s:' .. ARGV[i]) end
ring(left)

local next_ms, soonest = 0, redis.call('ZRANGE', base .. ':due', 0, 0, 'WITHSCORES')
if soonest[2] then next_ms = math.max(1, math.ceil((soonest[2] - now) / 1000)) end
if changed then
  for i = #lanes, 1, -1 do
    if emptied[lanes[i]] and redis.call('EXISTS', base .. ':s:' .. lanes[i]) == 0 then table.remove(lanes, i) end
  end
  save()
end
wake()
return { 'taken', position, next_ms, drain, int(first), unpack(answer) }
