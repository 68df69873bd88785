-- Read one page of one part of a queue, for the check that every message is in exactly one place. No page takes long.
--
-- KEYS[1]  the name's own key
-- ARGV[3]  part        the part to read: see below
-- ARGV[4]  which       the consumer whose messages are read, or the lane
-- ARGV[5]  at          where to continue, 0 to begin; of a lane, the distance from its end
-- ARGV[6]  most        about how many entries to read; an entry with a key counts as several, because it costs as much
-- ARGV[7…] candidates  for each: entry, and the place that showed it; of a dead letter, its id and `dead`
--
-- Returns  {'consistency', at, {value…}, {kind, value, entry, …}, server}: where to continue, 0 at the end; the values that
--          were read; the faults that this page proves by itself; and the server that answers, empty for a user without
--          the right to INFO
--
-- Twin of rules/queue/consistency.py, which sends the pages and gives the kinds of faults their meaning.

--@include queue/state.lua
--@include queue/text.lua
--@include queue/dead_letter_order.lua
--@const READY = commands.queue.READY
--@const DELAYED = commands.queue.DELAYED
--@const HELD = commands.queue.HELD
--@const BEHIND = commands.queue.BEHIND
--@const DEAD = commands.queue.DEAD
--@const MESSAGES = commands.queue_admin.MESSAGES
--@const CONSUMERS = commands.queue_admin.CONSUMERS
--@const LANES = commands.queue_admin.LANES
--@const KEY_HEADS = commands.queue_admin.KEY_HEADS
--@const KEY_LINES = commands.queue_admin.KEY_LINES
--@const DEAD_LETTERS = commands.queue_admin.DEAD_LETTERS
--@const DEAD_ORDER = commands.queue_admin.DEAD_ORDER
--@const MISSING = rules.queue.consistency.MISSING
--@const SEVERAL_HEADS = rules.queue.consistency.SEVERAL_HEADS
--@const NO_HEAD = rules.queue.consistency.NO_HEAD
--@const WRONG_HEAD = rules.queue.consistency.WRONG_HEAD
--@const UNINDEXED_HEAD = rules.queue.consistency.UNINDEXED_HEAD
--@const NOT_IN_LINE = rules.queue.consistency.NOT_IN_LINE
--@const DEAD_NOT_IN_ORDER = rules.queue.consistency.DEAD_NOT_IN_ORDER
local SCAN_COUNT, BYTES, LEAST = 8, 262144, 2
local part, which, at, most = ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6])
local values, faults, bytes, examined = {}, {}, 0, 0

local function add_value(value) values[#values + 1] = value end

local function add_fault(kind, value, entry)
  for _, each in ipairs({ kind, value, entry or '' }) do faults[#faults + 1] = each end
end

-- Read small pages until they have enough entries or bytes, and call `visit` for each entry. With large messages, an answer
-- has fewer entries.
local function scan(next_page, visit)
  repeat
    local page = next_page(at)
    at = page[1]
    for i = 1, #page[2], 2 do
      visit(page[2][i], page[2][i + 1])
      examined = examined + 1
    end
  until at == '0' or examined >= most or bytes >= BYTES
end

local function scan_hash(name, visit)
  scan(function(from) return redis.call('HSCAN', base .. name, from, 'COUNT', SCAN_COUNT) end, visit)
end

local function scan_sorted_set(name, visit)
  scan(function(from) return redis.call('ZSCAN', base .. name, from, 'COUNT', SCAN_COUNT) end, visit)
end

local function text_at(entry)
  local text = redis.call('HGET', base .. ':messages', entry)
  examined, bytes = examined + 1, bytes + (text and #text or 0)
  return text
end

local function key_at(entry)
  local text = text_at(entry)
  return text and key_of(text)
end

local function is_behind(entry) return redis.call('ZSCORE', base .. ':behind', entry) end

local function line_of(key) return #key .. ':' .. key end

-- Return the head of this key by the index, and the token that holds it; nothing if that message cannot be the head.
local function indexed_head(key)
  local entry, holder = string.match(redis.call('HGET', base .. ':heads', key) or '', '^(%S+) ?(.*)$')
  if entry and key_at(entry) == key and not is_behind(entry) then return entry, holder end
end

-- Return the id of a message, and its key if it has one.
local function id_of(entry, text)
  local first, last, failure, past = string.match(text, '^%d+ %d+ %d+ (%d+) (%d+) (%d+)\n()')
  local id, headers, key, lane, from
  if past then
    id, headers, key, lane, from = string.match(text, '^(%d+) (%d+) (%d+) (%d+)\n()', past + first + last + failure)
  end
  if not from or #text < from - 1 + id + headers + key + lane then return 'foreign-' .. entry end
  local past_id = from + id + headers
  return string.sub(text, from, from + id - 1), key ~= '0' and string.sub(text, past_id, past_id + key - 1) or nil
end

-- Add a fault: this message is the head of its key, but the index names another message or none.
local function add_unindexed(key, entry) add_fault(indexed_head(key) and SEVERAL_HEADS or UNINDEXED_HEAD, key, entry) end

-- Check an entry that is ready, delayed or held: its message must exist; a message with a key must be the key's head.
local function check_head(entry)
  add_value(entry)
  if not has_key(entry) then  -- its text need not be read
    if redis.call('HEXISTS', base .. ':messages', entry) == 0 then add_fault(MISSING, entry) end
    return
  end
  local text = text_at(entry)
  local key = text and key_of(text)
  if not text then add_fault(MISSING, entry) end
  if not key then return end
  local head = redis.call('HGET', base .. ':heads', key)
  if head == (part == HELD and entry .. ' ' .. which or entry) then return end
  if indexed_head(key) ~= entry then return add_unindexed(key, entry) end
  add_fault(WRONG_HEAD, key)  -- the index names another holder
end

local has_head = {}  -- key -> whether the index names a head of it

local function check_behind(entry)
  add_value(entry)
  local text = text_at(entry)
  local key = text and key_of(text)
  if not text then add_fault(MISSING, entry) end
  if not key or not redis.call('ZSCORE', base .. ':key_lines', line_of(key) .. entry) then add_fault(NOT_IN_LINE, entry) end
  if key and has_head[key] == nil then has_head[key] = indexed_head(key) ~= nil end
  if key and not has_head[key] then add_fault(NO_HEAD, key) end
end

-- Read a candidate again. Return its id if it is still in that place; the key whose head it is by the index; and 1 if other
-- messages are behind it. Each is empty otherwise.
local function recheck(entry, seen_in)
  local place, token = string.match(seen_in, '^(%a*) ?(.*)$')
  if place == DEAD then
    return { redis.call('HEXISTS', base .. ':dead', entry) == 1 and entry or '', '', '' }
  end
  local text = text_at(entry)
  if place == DELAYED then text = redis.call('ZSCORE', base .. ':delayed', entry) and text end
  if place == BEHIND then text = is_behind(entry) and text end
  if place == HELD then text = redis.call('ZSCORE', base .. ':held:' .. token, entry) and text end
  if not text then return { '', '', '' } end
  local key = key_of(text)
  if not key or indexed_head(key) ~= entry then return { id_of(entry, text), '', '' } end
  local line = line_of(key)
  local others = redis.call('ZRANGEBYLEX', base .. ':key_lines', '[' .. line, '(' .. line .. ':', 'LIMIT', 0, 1)
  return { id_of(entry, text), key, others[1] and '1' or '' }
end

if part == MESSAGES then
  scan_hash(':messages', function(entry, text)
    local id, key = id_of(entry, text)
    add_value(entry)
    add_value(id)
    bytes = bytes + #text
    -- Check here: no other part reads the key of a message whose entry does not show that it has one.
    if key and not has_key(entry) and not is_behind(entry) and indexed_head(key) ~= entry then add_unindexed(key, entry) end
  end)
elseif part == CONSUMERS then
  scan_hash(':consumers', add_value)
elseif part == LANES then
  values, at = lanes, '0'
elseif part == HELD then
  scan_sorted_set(':held:' .. which, check_head)
elseif part == DELAYED then
  scan_sorted_set(':delayed', check_head)
elseif part == BEHIND then
  scan_sorted_set(':behind', check_behind)
elseif part == READY then
  -- Read from the end of the lane: a receive does not change an entry's distance from the end.
  local lane = base .. ':ready:' .. which
  local entries = redis.call('LRANGE', lane, -(at + most - 1), -at)
  for i = #entries, 1, -1 do
    check_head(entries[i])
    examined = examined + 1
    if (examined >= most or bytes >= BYTES) and #values >= LEAST then break end
  end
  at = int(redis.call('LLEN', lane))
elseif part == KEY_HEADS then
  scan_hash(':heads', function(key)
    local entry, holder = indexed_head(key)
    if not entry or holder ~= '' and not redis.call('ZSCORE', base .. ':held:' .. holder, entry) then
      add_fault(WRONG_HEAD, key)
    end
  end)
elseif part == KEY_LINES then
  scan_sorted_set(':key_lines', function(line)
    local length, from = string.match(line, '^(%d+):()')
    local past = (from or 1) + (length or 0)
    local key, entry = string.sub(line, from or 1, past - 1), string.sub(line, past)
    if key_at(entry) ~= key or not is_behind(entry) then add_fault(NOT_IN_LINE, entry) end
  end)
elseif part == DEAD_LETTERS then
  scan_hash(':dead', function(id, dead_letter)
    add_value(id)
    bytes = bytes + #dead_letter
    local died = string.match(dead_letter, '^(%d+) ')
    if not died or not redis.call('ZSCORE', base .. ':dead_order', position_of_dead_letter(died, id)) then
      add_fault(DEAD_NOT_IN_ORDER, id)
    end
  end)
elseif part == DEAD_ORDER then
  scan_sorted_set(':dead_order', function(position)
    local id = string.sub(position, 22)
    local dead_letter = redis.call('HGET', base .. ':dead', id)
    local died = dead_letter and string.match(dead_letter, '^(%d+) ')
    bytes = bytes + (dead_letter and #dead_letter or 0)
    if not died or position_of_dead_letter(died, id) ~= position then add_fault(MISSING, position) end
  end)
else
  for i = 7, #ARGV, 2 do
    for _, value in ipairs(recheck(ARGV[i], ARGV[i + 1])) do add_value(value) end
    if bytes >= BYTES and i >= 7 + 2 * SCAN_COUNT then break end
  end
end

-- Identify the server by its run and by the primary whose data it has: a replica that continues with the data of another
-- primary counts as another server.
local server = ''
for section, name in pairs({ server = 'run_id', replication = 'master_replid' }) do
  local info = redis.pcall('INFO', section)
  server = server .. (type(info) == 'string' and string.match(info, name .. ':(%w+)') or '')
end
return { 'consistency', at, values, faults, server }
