-- Make messages ready again, and free the next message of a key.
--
-- KEYS[1], ARGV[1…2]  as queue/state.lua
--
-- Returns  nothing; it defines the functions make_ready, requeue and free_key.
--
-- Twin of rules/queue/messages.py: _make_ready, free_key.

-- Make a message ready or delayed; return how many messages became ready.
local function make_ready(message, delay_ms)
  if delay_ms > 0 then
    add_delayed(text_of(message), now + delay_ms * 1000, message.key)
    return 0
  end
  add_ready(lane_of(message), text_of(message), message.key)
  return 1
end

-- Make the same message ready at the end of its lane, under a new entry, with its text unchanged.
local function requeue(entry, text)
  local crashes, first, last, failure, at = string.match(text, '^%d+ %d+ (%d+) (%d+) (%d+) (%d+)\n()')
  local id, headers, key, lane, from
  if at then
    id, headers, key, lane, from = string.match(text, '^(%d+) (%d+) (%d+) (%d+)\n()', at + first + last + failure)
  end
  if not from or #text < from - 1 + id + headers + key + lane then return make_ready(read(entry, text), 0) end
  from = from + id + headers
  local own = key ~= '0' and string.sub(text, from, from + key - 1) or nil
  from = from + key
  add_ready(tonumber(crashes) >= QUARANTINE_AT and QUARANTINE or string.sub(text, from, from + lane - 1), text, own)
  return 1
end

local behind_count  -- the number of messages behind others, once it was read

-- Make the next message of a key ready, because its first message is gone for good. Return how many became ready.
local function free_key(key)
  if not key then return 0 end
  local line, at, ready = line_of(key), 0, 0
  set_head(key, false)
  behind_count = behind_count or redis.call('ZCARD', base .. ':key_lines')
  while at < behind_count and not heads[key] do  -- more than once only if another program changed or deleted a text
    local found = redis.call('ZRANGEBYLEX', base .. ':key_lines', '[' .. line, '(' .. line .. ':', 'LIMIT', at, 1)[1]
    if not found then break end
    local entry = string.sub(found, #line + 1)
    followed_lines[#followed_lines + 1], followed[#followed + 1], at = found, entry, at + 1
    local text = redis.call('HGET', base .. ':messages', entry)
    if text then ready = ready + requeue(entry, text) end
  end
  return ready
end
