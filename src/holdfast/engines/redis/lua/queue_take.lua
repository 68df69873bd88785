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
local CALL_US, BYTES, FEW = 30000000, 1048576, 8
local token, most, wanted = ARGV[3], math.min(tonumber(ARGV[4]), PART), tonumber(ARGV[7])
local mine, suspects, past_lanes = base .. ':h:' .. token, base .. ':s:' .. SUSPECTS, 8 + wanted
local who = member(token)
if not who then return { 'unknown consumer' } end
local changed = false

local due = redis.call('ZRANGEBYSCORE', base .. ':due', '-inf', int(now), 'LIMIT', 0, AT_ONCE)
if #due > 0 then
  for i, text in ipairs(texts_of(due)) do
    if text then again(due[i], text) end
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

local lines, seen = {}, {}  -- from which lanes, and how many from each
if not forgotten then
  if ARGV[6] == '1' and most > 0 then
    found = redis.call('LRANGE', suspects, 0, 0)
    suspect = #found > 0
    if suspect then lines[1] = { SUSPECTS, 1 } end
  end
  for i = 8, past_lanes - 1 do
    if not suspect and #found < most and not seen[ARGV[i]] then
      seen[ARGV[i]] = true
      local line = redis.call('LRANGE', base .. ':s:' .. ARGV[i], 0, most - #found - 1)
      for _, entry in ipairs(line) do found[#found + 1] = entry end
      if #line > 0 then lines[#lines + 1] = { ARGV[i], #line } end
    end
  end
end

-- Large ones come in parts, after a look at the first few: no answer is much longer than it has to be.
local answer, held, at, bytes = { 'taken', -1, 0, 0, '0' }, {}, 1, 0
while at <= #found and bytes < BYTES do
  local past = math.min(#found, at == 1 and FEW or math.max(at, math.floor((at - 1) * BYTES / (bytes + 1))))
  for i, text in ipairs(redis.call('HMGET', base .. ':m', unpack(found, at, past))) do
    if text then
      local entry = found[at + i - 1]
      answer[#answer + 1] = entry
      answer[#answer + 1] = text
      held[#held + 1] = entry
      held[#held + 1] = entry
      bytes = bytes + #text
    end
  end
  at = past + 1
end
redis.call('ZCARD', mine)
local suspected = redis.call('LLEN', suspects) - (suspect and 1 or 0)

-- All has been read that could be of a wrong type: from here on it is written.
if ARGV[5] == '1' and #held == 0 then
  ticket = ticket + 1
  make_way()  -- whoever waits will free memory
  if redis.call('ZADD', base .. ':hungry', 'NX', ticket, token) == 1 then changed = true end
  answer[2] = redis.call('ZRANK', base .. ':hungry', token)
else
  redis.call('ZREM', base .. ':hungry', token)  -- the first write passes at maxmemory, and so do the others
end

if #lines > 0 then
  each_part(held, function(...) redis.call('ZADD', mine, ...) end)
  local taken = at - 1
  for _, line in ipairs(lines) do
    redis.call('LTRIM', base .. ':s:' .. line[1], math.min(line[2], taken), -1)
    taken = math.max(0, taken - line[2])
  end
  count('taken', #held / 2)
  if suspect then called = '' end
  changed = true
end
if who[ENDS] <= now then  -- late, but not taken for dead: whoever speaks lives
  who[ENDS] = now + who[TTL] * 1000
  put_member(token, who)
end

if suspected > 0 and (called == '' or called == token or called_until <= now) then
  answer[4] = 1
  if called ~= token or called_until <= now then
    called, called_until, changed = token, now + CALL_US, true
  end
end
if #held > 0 then answer[5], changed = int(next_fence(#held / 2)), true end
local left = 0
for i = 8, past_lanes - 1 do left = left + redis.call('LLEN', base .. ':s:' .. ARGV[i]) end
ring(left)

local soonest = redis.call('ZRANGE', base .. ':due', 0, 0, 'WITHSCORES')
if soonest[2] then answer[3] = math.max(1, math.ceil((soonest[2] - now) / 1000)) end
if changed then
  for i = #lanes, 1, -1 do
    for _, line in ipairs(lines) do
      if line[1] == lanes[i] and redis.call('EXISTS', base .. ':s:' .. line[1]) == 0 then
        table.remove(lanes, i)
        break
      end
    end
  end
  save()
end
wake()
return answer
