-- A queue: its record, its consumers, and what becomes ready. Every script of a queue begins with this text.
--
-- KEYS[1]  the name's own key, as in lease/record.lua; all keys of the queue are made from it and share its slot. With :mq
--          behind it, it is the queue's record: fence, number, ticket, looked_us, look_us, called, called_us, lanes,
--          counts. Then:
--            :m        messages    hash        entry -> text, see queue/messages.lua; all but the dead
--            :s:<lane> ready       list        entries, the first first; :s:! are the suspects
--            :due      delayed     sorted set  entry by the time at which it is due
--            :h:<who>  held        sorted set  entry by its fence, of one consumer; it was taken at that time
--            :first    keys        hash        key -> entry of the message that comes first, a space, and who holds it
--            :behind   the others  sorted set  entry by its number
--            :lines    their order sorted set  `#key:`, key, entry: those of a key stand together, the first first
--            :who      consumers   hash        token -> client, owner, label, fence, ttl_ms, since_us, ends_us, fallen,
--                                              keeps, heard
--            :ends     their ends  sorted set  token by ends_us
--            :live:    their lives string      one for each who is heard, which expires with its ttl
--            :hungry   waiting     sorted set  token by ticket
--            :dead     letters     hash        id -> text, see queue/messages.lua
--            :died     deaths      sorted set  place, in the order of places
--            :dup:     sent keys   string      one per key, which expires by itself: id
--            :said:    calls       string      one per call, which expires by itself: ids, or nothing if all were new
-- KEYS[2]  in a cluster only, and never there: as in lease/record.lua
-- ARGV[1]  client     who asks: the channel on which it hears its wake-ups
-- ARGV[2]  memory_ms  how long an empty queue is remembered after its last use
--
-- Returns  nothing; it gives the command the functions append, delay, store, ring, save and so on.
--
-- Same law as rules/queue/messages.py. What becomes ready or delayed is collected, and written by `store` after everything has
-- been read: a key of a wrong type is met before anything was written. The first write of a script decides whether it
-- passes at maxmemory, so commands that free begin with `make_way`. An entry's number is never used again, also after
-- the last moments of a server were lost: so it is at least the time. The entry of a message with a key has a letter
-- behind its number, and so is longer: who has it knows that without its text.

local base, me = KEYS[1] .. ':mq', ARGV[1]
local BATCH_MAX, COSTLY_BATCH_MAX, QUARANTINE, QUARANTINE_AT, PART, DIGITS = 128, 64, '!', 2, 1000, 16
local CLIENT, OWNER, LABEL, FENCE, TTL, SINCE, ENDS, FALLEN, KEEPS, HEARD = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local fence, number, ticket, looked, look, called, called_until, lanes, counts = 0, 0, 0, 0, 0, '', 0, {}, {}
local packed = redis.call('GET', base)
if packed then fence, number, ticket, looked, look, called, called_until, lanes, counts = cmsgpack.unpack(packed) end

local texts, lined, later = {}, {}, {}  -- to write: entry, text …; lane -> entries; due, entry …
local firsts, keyed = {}, false         -- key -> who comes first now, or false; whether there is any
local behind, lines = {}, {}            -- number, entry …; 0, line …
local passed, left = {}, {}             -- entries that stand behind no more, and their lines
local calls = {}                        -- whom to ring: client, token …

local function int(value) return string.format('%.0f', value) end

-- The same of a time, and faster: it is written as whole numbers, of which one with nine digits fits everywhere.
local function stamp(value)
  local low = value % 1000000000
  return string.format('%d%09d', (value - low) / 1000000000, low)
end

local function make_way() redis.call('DEL', base .. ':-') end

local function count(what, more)
  if more > 0 then counts[what] = (counts[what] or 0) + more end
end

-- `call` with the list, in parts that a command can carry.
local function each_part(list, call)
  for first = 1, #list, PART do
    call(unpack(list, first, math.min(first + PART - 1, #list)))
  end
end

local function next_fence(many)
  local first = math.max(fence + 1, now)
  fence = first + many - 1
  return first
end

-- Consumers.

local function member(token)
  local text = redis.call('HGET', base .. ':who', token)
  return text and { cmsgpack.unpack(text) }
end

-- The same, if it was not taken for dead.
local function living(token)
  local who = member(token)
  return who and not who[FALLEN] and who
end

local function put_member(token, who)
  redis.call('ZADD', base .. ':ends', int(who[ENDS]), token)
  redis.call('HSET', base .. ':who', token, cmsgpack.pack(unpack(who, 1, 10)))
  if who[HEARD] and not who[FALLEN] then redis.call('SET', base .. ':live:' .. token, '1', 'PX', int(who[TTL])) end
end

local function drop_member(token, who)
  redis.call('HDEL', base .. ':who', token)
  redis.call('ZREM', base .. ':ends', token)
  redis.call('ZREM', base .. ':hungry', token)
  if who[HEARD] then redis.call('DEL', base .. ':live:' .. token) end
end

-- So many of those who have waited longest, and live: they wait no more.
local function ring(most)
  while #calls < 2 * most do
    local found = redis.call('ZPOPMIN', base .. ':hungry', math.min(most - #calls / 2, BATCH_MAX))
    if #found == 0 then return end
    for i = 1, #found, 2 do
      local who = member(found[i])
      if who and who[ENDS] > now then
        calls[#calls + 1] = who[CLIENT]
        calls[#calls + 1] = found[i]
      end
    end
  end
end

-- Messages.

local function new_entry(text, key)
  number = math.max(number + 1, now)
  local entry = key and stamp(number) .. 'k' or stamp(number)
  local size = #texts
  texts[size + 1], texts[size + 2] = entry, text
  return entry
end

-- It comes first of all that have this key; false for none.
local function lead(key, first) firsts[key], keyed = first, true end

local function append(lane, text, key)
  local line = lined[lane]
  if not line then
    line = {}
    lined[lane] = line
  end
  local entry = new_entry(text, key)
  line[#line + 1] = entry
  if key then lead(key, entry) end
end

local function delay(text, due, key)
  local entry = new_entry(text, key)
  later[#later + 1] = int(due)
  later[#later + 1] = entry
  if key then lead(key, entry) end
end

-- Whether there is a message of each of these keys, as far as the server knows.
local function leads(keys)
  local found = {}
  each_part(keys, function(...)
    for _, first in ipairs(redis.call('HMGET', base .. ':first', ...)) do found[#found + 1] = first end
  end)
  return found
end

local function line_of(key) return #key .. ':' .. key end

local function line_up(text, key)
  local entry = new_entry(text, key)
  behind[#behind + 1] = int(number)
  behind[#behind + 1] = entry
  lines[#lines + 1] = '0'
  lines[#lines + 1] = line_of(key) .. entry
  keyed = true
end

local function known_lane(lane)
  for _, other in ipairs(lanes) do
    if other == lane then return true end
  end
end

-- There is nothing in this lane any more.
local function forget_lane(lane)
  for i, other in ipairs(lanes) do
    if other == lane then return table.remove(lanes, i) end
  end
end

-- When the next delay is over; 0 if there is none.
local function due_ms()
  local soonest = redis.call('ZRANGE', base .. ':due', 0, 0, 'WITHSCORES')
  return soonest[2] and math.max(1, math.ceil((soonest[2] - now) / 1000)) or 0
end

-- Look at what is about to be written to: a wrong type must be met now, or never.
local function check()
  if keyed then
    redis.call('HLEN', base .. ':first')
    redis.call('ZCARD', base .. ':behind')
    redis.call('ZCARD', base .. ':lines')
  end
  if #texts == 0 then return end
  redis.call('HLEN', base .. ':m')
  redis.call('ZCARD', base .. ':hungry')
  for lane in pairs(lined) do redis.call('LLEN', base .. ':s:' .. lane) end
  if #later > 0 then redis.call('ZCARD', base .. ':due') end
end

local function store_keys()
  local noted, ended = {}, {}
  for key, first in pairs(firsts) do
    if first then
      noted[#noted + 1] = key
      noted[#noted + 1] = first
    else
      ended[#ended + 1] = key
    end
  end
  each_part(noted, function(...) redis.call('HSET', base .. ':first', ...) end)
  each_part(ended, function(...) redis.call('HDEL', base .. ':first', ...) end)
  each_part(behind, function(...) redis.call('ZADD', base .. ':behind', ...) end)
  each_part(lines, function(...) redis.call('ZADD', base .. ':lines', ...) end)
  each_part(passed, function(...)
    redis.call('ZREM', base .. ':behind', ...)
    redis.call('HDEL', base .. ':m', ...)
  end)
  each_part(left, function(...) redis.call('ZREM', base .. ':lines', ...) end)
  firsts, keyed, behind, lines, passed, left = {}, false, {}, {}, {}, {}
end

-- Write what was collected, all of it once.
local function store()
  if keyed then store_keys() end
  if #texts == 0 then return end
  each_part(texts, function(...) redis.call('HSET', base .. ':m', ...) end)
  for lane, line in pairs(lined) do
    each_part(line, function(...) redis.call('RPUSH', base .. ':s:' .. lane, ...) end)
    if not known_lane(lane) then lanes[#lanes + 1] = lane end
  end
  each_part(later, function(...) redis.call('ZADD', base .. ':due', ...) end)
  texts, lined, later = {}, {}, {}
end

-- The record; `over` if this may have been the end of the queue, which then is remembered for a while.
local function save(over)
  local record = cmsgpack.pack(fence, number, ticket, looked, look, called, called_until, lanes, counts)
  if over and redis.call('EXISTS', base .. ':m', base .. ':who', base .. ':dead') == 0 then
    redis.call('DEL', base .. ':first', base .. ':behind', base .. ':lines')  -- empty, unless somebody was here
    redis.call('SET', base, record, 'PX', ARGV[2])
  else
    redis.call('SET', base, record)
  end
end

local function wake()
  for i = 1, #calls, 2 do redis.pcall('PUBLISH', calls[i], calls[i + 1]) end
end
