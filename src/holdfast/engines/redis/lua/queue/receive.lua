-- Give what there is; ring others if more is left than was taken.
--
-- KEYS[1]  the name's own key
-- ARGV[3]  token
-- ARGV[4]  most
-- ARGV[5]  wait    1 to be rung if there is nothing
-- ARGV[6]  idle    how many suspects it may be given, as it has nothing new
-- ARGV[7]  share   1 to take no more than its share of what is ready
-- ARGV[8]  lanes   how many; they follow, and then, if it says what it has: the word `known` and the entries; else, if
--                  it says that, the word `seen` and the largest fence that it was given
--
-- Returns  {'taken', position or -1, next_ms, drain, {fence…}, {gone entry…}, entry, text…}: if there is one fence, the
--          others count up from it | {'unknown consumer'}
--
-- Same law as rules/queue/messages.py: take. A lane that the record does not name has nothing, and costs nothing.

--@include queue/state.lua
--@include queue/messages.lua
local DRAIN_US, BYTES, FEW = 30000000, 1048576, 8
local token, most, wanted = ARGV[3], math.min(tonumber(ARGV[4]), PART), tonumber(ARGV[8])
local mine, suspects, past_lanes = base .. ':h:' .. token, base .. ':s:' .. QUARANTINE, 9 + wanted
local who = living(token)
if not who then return { 'unknown consumer' } end
local changed = false

local due = redis.call('ZRANGEBYSCORE', base .. ':due', '-inf', int(now), 'LIMIT', 0, BATCH_MAX)
if #due > 0 then
  for i, text in ipairs(texts_of(due)) do
    if text then again(due[i], text) end
  end
  check()
  make_way()
  store()
  redis.call('ZREM', base .. ':due', unpack(due))
  redis.call('HDEL', base .. ':m', unpack(due))
  save()
end

-- What it says it has, and has not; and what is with it, and it does not know: an answer was lost.
local found, gone, forgotten, suspect = {}, {}, false, false
if ARGV[past_lanes] == 'seen' then
  local newer = redis.call('ZRANGEBYSCORE', mine, '(' .. ARGV[past_lanes + 1], '+inf', 'LIMIT', 0, most)
  for i, text in ipairs(texts_of(newer)) do
    if text then found[#found + 1] = newer[i] end
  end
  forgotten = #found > 0
elseif ARGV[past_lanes] then
  local said, known = {}, {}
  for i = past_lanes + 1, #ARGV do said[#said + 1], known[ARGV[i]] = ARGV[i], true end
  for i, has in ipairs(fences_of(said, token)) do
    if not has then gone[#gone + 1] = said[i] end
  end
  for _, entry in ipairs(redis.call('ZRANGE', mine, 0, #said + BATCH_MAX - 1)) do
    if not known[entry] and #found < most then found[#found + 1] = entry end
  end
  forgotten = #found > 0
end

local sizes, ready = {}, 0  -- of the lanes that it asks for, and the suspects'
for _, lane in ipairs(lanes) do
  local asked = false
  for i = 9, past_lanes - 1 do asked = asked or ARGV[i] == lane end
  if asked or lane == QUARANTINE then sizes[lane] = redis.call('LLEN', base .. ':s:' .. lane) end
  if asked then ready = ready + sizes[lane] end
end

local sources = {}  -- from which lanes, and how many from each
if not forgotten then
  local few = math.min(tonumber(ARGV[6]), most)
  if few > 0 and (sizes[QUARANTINE] or 0) > 0 then
    found = redis.call('LRANGE', suspects, 0, few - 1)
    suspect, most, sources[1] = true, 0, { QUARANTINE, #found }
  elseif ARGV[7] == '1' then
    -- An equal part of what is ready, and not more than would be an equal part of everything; but always one.
    local crew, all = redis.call('HLEN', base .. ':who'), redis.call('HLEN', base .. ':m')
    for _, lane in ipairs(lanes) do all = all - (sizes[lane] or redis.call('LLEN', base .. ':s:' .. lane)) end
    all = all - redis.call('ZCARD', base .. ':due') - redis.call('ZCARD', base .. ':behind')
    local fair = math.ceil((ready + all) / crew) - redis.call('ZCARD', mine)
    most = math.min(most, math.max(1, math.min(math.ceil(ready / crew), fair)))
  end
  local seen = {}
  for i = 9, past_lanes - 1 do
    local lane = ARGV[i]
    if #found < most and not seen[lane] and (sizes[lane] or 0) > 0 then
      seen[lane] = true
      local line = redis.call('LRANGE', base .. ':s:' .. lane, 0, most - #found - 1)
      for _, entry in ipairs(line) do found[#found + 1] = entry end
      sources[#sources + 1] = { lane, #line }
    end
  end
end

-- Large ones come in parts, after a look at the first few: no answer is much longer than it has to be.
local answer, held, many, at, bytes, first = { 'taken', -1, 0, 0, {}, gone }, {}, 0, 1, 0, math.max(fence + 1, now)
while at <= #found and bytes < BYTES do
  local past = math.min(#found, at == 1 and FEW or math.max(at, math.floor((at - 1) * BYTES / (bytes + 1))))
  for i, text in ipairs(redis.call('HMGET', base .. ':m', unpack(found, at, past))) do
    if text then
      local entry = found[at + i - 1]
      answer[2 * many + 7], answer[2 * many + 8] = entry, text
      held[2 * many + 1], held[2 * many + 2] = first + many, entry
      many, bytes = many + 1, bytes + #text
      if #entry > DIGITS and not forgotten then
        local key = key_of(text)
        if key then lead(key, entry .. ' ' .. token) end
      end
    end
  end
  at = past + 1
end
if forgotten then
  local given = {}
  for i = 2, #held, 2 do given[#given + 1] = held[i] end
  for i, score in ipairs(fences_of(given, token)) do answer[5][i] = int(score) end
end
redis.call('ZCARD', mine)
if who[ENDS] <= now then redis.call('ZCARD', base .. ':ends') end
check()

-- All has been read that could be of a wrong type: from here on it is written.
if ARGV[5] == '1' and many == 0 then
  ticket = ticket + 1
  make_way()  -- whoever waits will free memory
  if redis.call('ZADD', base .. ':hungry', 'NX', ticket, token) == 1 then changed = true end
  answer[2] = redis.call('ZRANK', base .. ':hungry', token)
else
  redis.call('ZREM', base .. ':hungry', token)  -- the first write passes at maxmemory, and so do the others
end

if #sources > 0 then
  each_part(held, function(...) redis.call('ZADD', mine, ...) end)
  store()
  local taken = at - 1
  for _, source in ipairs(sources) do
    local lane, off = source[1], math.min(source[2], taken)
    redis.call('LTRIM', base .. ':s:' .. lane, off, -1)
    sizes[lane], taken = sizes[lane] - off, taken - off
    if sizes[lane] == 0 then forget_lane(lane) end
  end
  count('received', many)
  if suspect then called = '' end
  if many > 0 then answer[5][1] = int(next_fence(many)) end
  changed = true
end
if who[ENDS] <= now then  -- late, but not taken for dead: whoever speaks lives
  who[ENDS] = now + who[TTL] * 1000
  put_member(token, who)
end

if (sizes[QUARANTINE] or 0) > 0 and (called == '' or called == token or called_until <= now) then
  answer[4] = 1
  if called ~= token or called_until <= now then
    called, called_until, changed = token, now + DRAIN_US, true
  end
end
local rest = 0
for i = 9, past_lanes - 1 do rest = rest + (sizes[ARGV[i]] or 0) end
ring(rest)
answer[3] = due_ms()
if changed then save() end
wake()
return answer
