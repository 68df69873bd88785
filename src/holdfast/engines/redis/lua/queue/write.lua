-- Add messages to a queue: collect them, check the keys, and write them.
--
-- KEYS[1], ARGV[1…2]  as queue/state.lua
--
-- Returns  nothing; it defines the functions add_ready, add_delayed, add_behind, set_head, check_types, store and so on.
--
-- Twin of rules/queue/messages.py: add_message. The scripts collect every message that becomes ready or delayed, and
-- `store` writes them after the script has read everything, so that a key of a wrong type fails before the first write. An
-- entry's number is at least the time in microseconds, so that it is never used again, even if a server lost its last
-- writes.

--@include queue/parts.lua
--@include queue/record_write.lua
local texts, lane_entries, delayed = {}, {}, {}  -- to write: entry, text …; lane -> entries; due, entry …
local heads, heads_changed = {}, false           -- key -> its first message, or false; whether any head changes
local behind, key_lines = {}, {}                 -- to write: number, entry …; 0, line …
local followed, followed_lines = {}, {}          -- entries that are no longer behind another, and their lines

local function add_to_counter(counter, more)
  if more > 0 then counts[counter] = (counts[counter] or 0) + more end
end

-- Return the same as int for a time, but faster: two whole numbers with nine digits each.
local function digits(value)
  local low = value % 1000000000
  return string.format('%d%09d', (value - low) / 1000000000, low)
end

local function new_entry(text, key)
  number = math.max(number + 1, now)
  local entry = key and digits(number) .. 'k' or digits(number)
  local size = #texts
  texts[size + 1], texts[size + 2] = entry, text
  return entry
end

-- Make this entry the first message of the key; false if the key has no message.
local function set_head(key, head) heads[key], heads_changed = head, true end

local function add_ready(lane, text, key)
  local entries = lane_entries[lane]
  if not entries then
    entries = {}
    lane_entries[lane] = entries
  end
  local entry = new_entry(text, key)
  entries[#entries + 1] = entry
  if key then set_head(key, entry) end
end

local function add_delayed(text, due, key)
  local entry = new_entry(text, key)
  delayed[#delayed + 1] = int(due)
  delayed[#delayed + 1] = entry
  if key then set_head(key, entry) end
end

local function line_of(key) return #key .. ':' .. key end

local function add_behind(text, key)
  local entry = new_entry(text, key)
  behind[#behind + 1] = int(number)
  behind[#behind + 1] = entry
  key_lines[#key_lines + 1] = '0'
  key_lines[#key_lines + 1] = line_of(key) .. entry
  heads_changed = true
end

-- Return the stored head of each of these keys; false for a key without one.
local function heads_of(keys)
  local found = {}
  each_part(keys, function(...)
    for _, head in ipairs(redis.call('HMGET', base .. ':heads', ...)) do found[#found + 1] = head end
  end)
  return found
end

local function is_known_lane(lane)
  for _, other in ipairs(lanes) do
    if other == lane then return true end
  end
end

local function remove_lane(lane)
  for i, other in ipairs(lanes) do
    if other == lane then return table.remove(lanes, i) end
  end
end

-- Read from the keys that will be written: a wrong type must fail now, before the first write.
local function check_types()
  if heads_changed then
    redis.call('HLEN', base .. ':heads')
    redis.call('ZCARD', base .. ':behind')
    redis.call('ZCARD', base .. ':key_lines')
  end
  if #texts == 0 then return end
  redis.call('HLEN', base .. ':messages')
  redis.call('ZCARD', base .. ':waiting')
  for lane in pairs(lane_entries) do redis.call('LLEN', base .. ':ready:' .. lane) end
  if #delayed > 0 then redis.call('ZCARD', base .. ':delayed') end
end

local function store_heads()
  local changed, ended = {}, {}
  for key, head in pairs(heads) do
    if head then
      changed[#changed + 1] = key
      changed[#changed + 1] = head
    else
      ended[#ended + 1] = key
    end
  end
  each_part(changed, function(...) redis.call('HSET', base .. ':heads', ...) end)
  each_part(ended, function(...) redis.call('HDEL', base .. ':heads', ...) end)
  each_part(behind, function(...) redis.call('ZADD', base .. ':behind', ...) end)
  each_part(key_lines, function(...) redis.call('ZADD', base .. ':key_lines', ...) end)
  each_part(followed, function(...)
    redis.call('ZREM', base .. ':behind', ...)
    redis.call('HDEL', base .. ':messages', ...)
  end)
  each_part(followed_lines, function(...) redis.call('ZREM', base .. ':key_lines', ...) end)
  heads, heads_changed, behind, key_lines, followed, followed_lines = {}, false, {}, {}, {}, {}
end

-- Write everything that was collected, once.
local function store()
  if heads_changed then store_heads() end
  if #texts == 0 then return end
  each_part(texts, function(...) redis.call('HSET', base .. ':messages', ...) end)
  for lane, entries in pairs(lane_entries) do
    each_part(entries, function(...) redis.call('RPUSH', base .. ':ready:' .. lane, ...) end)
    if not is_known_lane(lane) then lanes[#lanes + 1] = lane end
  end
  each_part(delayed, function(...) redis.call('ZADD', base .. ':delayed', ...) end)
  texts, lane_entries, delayed = {}, {}, {}
end
