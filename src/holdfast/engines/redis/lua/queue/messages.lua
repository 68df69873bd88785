-- What a message says of itself, and the dead letters. For scripts that move messages.
--
-- KEYS[1], ARGV[1…2]  as queue/state.lua
--
-- Returns  nothing; it gives the command the functions read, text_of, lane_of, follow, bury and so on.
--
-- A message is one text. `sent attempts crashes #first #last #why`, a new line, first, last, why; then, as its sender
-- has made it and never changed: `#id #headers #key #lane`, a new line, id, headers, key, lane, body. The numbers are
-- lengths in bytes. Whatever else stands there was written by somebody else: it is the body of a message, and its id is
-- `foreign-` and the entry.
--
-- A dead letter is `died #reason`, a new line, reason, and the message. Its place is the time of its death, of twenty
-- digits, a dash and the id.

local graves, dug = {}, {}  -- to bury: id, text …; and the places of those that go

local function read(entry, text)
  local sent, attempts, crashes, first, last, why, at = string.match(text, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+)\n()')
  local tail = sent and string.sub(text, at + first + last + why)
  local id, headers, key, lane, from
  if tail then id, headers, key, lane, from = string.match(tail, '^(%d+) (%d+) (%d+) (%d+)\n()') end
  if not from or #tail < from - 1 + id + headers + key + lane then
    local name = 'foreign-' .. entry
    tail = #name .. ' 0 0 0\n' .. name .. text
    return { sent = '0', attempts = 0, crashes = 0, first = '', last = '', why = '', tail = tail, id = name, lane = '' }
  end
  local past = from + id + headers
  return {
    sent = sent, attempts = tonumber(attempts), crashes = tonumber(crashes),
    first = string.sub(text, at, at + first - 1),
    last = string.sub(text, at + first, at + first + last - 1),
    why = string.sub(text, at + first + last, at + first + last + why - 1),
    tail = tail, id = string.sub(tail, from, from + id - 1),
    key = key ~= '0' and string.sub(tail, past, past + key - 1) or nil,
    lane = string.sub(tail, past + key, past + key + lane - 1),
  }
end

-- The key alone; nothing if it has none.
local function key_of(text)
  local first, last, why, at = string.match(text, '^%d+ %d+ %d+ (%d+) (%d+) (%d+)\n()')
  if not at then return end
  local id, headers, key, from = string.match(text, '^(%d+) (%d+) (%d+) %d+\n()', at + first + last + why)
  if not from or key == '0' or #text < from - 1 + id + headers + key then return end
  from = from + id + headers
  return string.sub(text, from, from + key - 1)
end

local function text_of(message)
  return message.sent .. ' ' .. message.attempts .. ' ' .. message.crashes .. ' ' .. #message.first .. ' '
    .. #message.last .. ' ' .. #message.why .. '\n' .. message.first .. message.last .. message.why .. message.tail
end

local function lane_of(message) return message.crashes >= QUARANTINE_AT and QUARANTINE or message.lane end

-- The message after it went wrong with this consumer.
local function failed(message, label, why, attempts, crashes)
  message.attempts, message.crashes = message.attempts + attempts, message.crashes + crashes
  if message.first == '' then message.first = label end
  message.last, message.why = label, why
end

-- Ready or delayed; how many are ready by it.
local function put(message, delay_ms)
  if delay_ms > 0 then
    delay(text_of(message), now + delay_ms * 1000, message.key)
    return 0
  end
  append(lane_of(message), text_of(message), message.key)
  return 1
end

-- The same message at the end of its lane, under a new entry: nothing of its text changes.
local function again(entry, text)
  local crashes, first, last, why, at = string.match(text, '^%d+ %d+ (%d+) (%d+) (%d+) (%d+)\n()')
  local id, headers, key, lane, from
  if at then
    id, headers, key, lane, from = string.match(text, '^(%d+) (%d+) (%d+) (%d+)\n()', at + first + last + why)
  end
  if not from or #text < from - 1 + id + headers + key + lane then return put(read(entry, text), 0) end
  from = from + id + headers
  local own = key ~= '0' and string.sub(text, from, from + key - 1) or nil
  from = from + key
  append(tonumber(crashes) >= QUARANTINE_AT and QUARANTINE or string.sub(text, from, from + lane - 1), text, own)
  return 1
end

local followers  -- how many stand behind others, once somebody has asked

-- The first of this key is gone for good: who stood behind it is ready now. How many are ready by it.
local function follow(key)
  if not key then return 0 end
  local line, at, ready = line_of(key), 0, 0
  lead(key, false)
  followers = followers or redis.call('ZCARD', base .. ':lines')
  while at < followers and not firsts[key] do  -- more than once only where somebody has changed or deleted a text
    local found = redis.call('ZRANGEBYLEX', base .. ':lines', '[' .. line, '(' .. line .. ':', 'LIMIT', at, 1)[1]
    if not found then break end
    local entry = string.sub(found, #line + 1)
    left[#left + 1], passed[#passed + 1], at = found, entry, at + 1
    local text = redis.call('HGET', base .. ':m', entry)
    if text then ready = ready + again(entry, text) end
  end
  return ready
end

local function place_of(died, id) return string.format('%020.0f', died) .. '-' .. id end

local function exhume(id, letter) dug[#dug + 1] = place_of(string.match(letter, '^(%d+) '), id) end

local function bury(message, reason)
  local before = redis.call('HGET', base .. ':dead', message.id)
  if before then exhume(message.id, before) end
  graves[#graves + 1] = message.id
  graves[#graves + 1] = int(now) .. ' ' .. #reason .. '\n' .. reason .. text_of(message)
end

-- Write what was buried; no more than so many letters are kept, and what had to go is counted. 0 is any number.
local function close_graves(most)
  if #graves == 0 then return end
  local places = {}
  for i = 1, #graves, 2 do
    places[#places + 1] = '0'
    places[#places + 1] = place_of(now, graves[i])
  end
  each_part(dug, function(...) redis.call('ZREM', base .. ':died', ...) end)
  each_part(places, function(...) redis.call('ZADD', base .. ':died', ...) end)
  each_part(graves, function(...) redis.call('HSET', base .. ':dead', ...) end)
  if most == 0 then return end
  -- A cap that was lowered takes effect in steps: no step is long.
  local over = math.min(redis.call('ZCARD', base .. ':died') - most, PART)
  if over <= 0 then return end
  local gone, ids = redis.call('ZRANGE', base .. ':died', 0, over - 1), {}
  for i, place in ipairs(gone) do ids[i] = string.sub(place, 22) end
  redis.call('ZREM', base .. ':died', unpack(gone))
  redis.call('HDEL', base .. ':dead', unpack(ids))
  count('evicted', over)
end

-- The texts of these entries, in their order; false where there is none.
local function texts_of(entries)
  local found = {}
  each_part(entries, function(...)
    for _, text in ipairs(redis.call('HMGET', base .. ':m', ...)) do found[#found + 1] = text end
  end)
  return found
end

-- Their fences, if they are with this consumer; false where one is not.
local function fences_of(entries, token)
  local found = {}
  each_part(entries, function(...)
    for _, score in ipairs(redis.call('ZMSCORE', base .. ':h:' .. token, ...)) do found[#found + 1] = score end
  end)
  return found
end
