-- Is every message in exactly one place? One page of one part of the queue; no page takes long.
--
-- KEYS[1]  the name's own key
-- ARGV[3]  part   what to look at: see below
-- ARGV[4]  which  the consumer whose messages these are, or the lane
-- ARGV[5]  at     where to go on, 0 to begin; of a lane, how far from its end
-- ARGV[6]  most   about how many to look at; one with a key counts for several, as it costs as much
-- ARGV[7…] suspects  for each: entry, and where it was seen; of a letter, its id and `dead`
--
-- Returns  {'sighted', at, {word…}, {kind, word, entry, …}, by}: where to go on, and 0 at the end; what was seen; what is
--          wrong for certain, because this step has seen all that it takes to know; and who answers, empty for a user
--          who may not ask that
--
-- Same law as rules/queue/dead_letters.py: audit. rules/queue/consistency.py asks, and says what the words mean.

--@include queue/state.lua
--@include queue/messages.lua
local FEW, BYTES, LEAST = 8, 262144, 2
local part, which, at, most = ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6])
local words, faults, bytes, looked = {}, {}, 0, 0

local function say(word) words[#words + 1] = word end

local function fault(kind, word, entry)
  for _, each in ipairs({ kind, word, entry or '' }) do faults[#faults + 1] = each end
end

-- Small parts, until that is enough: large messages make a short page.
local function pages(found, see)
  repeat
    local page = found(at)
    at = page[1]
    for i = 1, #page[2], 2 do
      see(page[2][i], page[2][i + 1])
      looked = looked + 1
    end
  until at == '0' or looked >= most or bytes >= BYTES
end

local function hash(name, see)
  pages(function(from) return redis.call('HSCAN', base .. name, from, 'COUNT', FEW) end, see)
end

local function sorted_set(name, see)
  pages(function(from) return redis.call('ZSCAN', base .. name, from, 'COUNT', FEW) end, see)
end

local function text_at(entry)
  local text = redis.call('HGET', base .. ':m', entry)
  looked, bytes = looked + 1, bytes + (text and #text or 0)
  return text
end

local function key_at(entry)
  local text = text_at(entry)
  return text and key_of(text)
end

local function is_behind(entry) return redis.call('ZSCORE', base .. ':behind', entry) end

-- Who is noted as the first of this key, and with whom; nothing if that one cannot be it.
local function noted(key)
  local entry, holder = string.match(redis.call('HGET', base .. ':first', key) or '', '^(%S+) ?(.*)$')
  if entry and key_at(entry) == key and not is_behind(entry) then return entry, holder end
end

-- The id; and the key, if it has one.
local function id_of(entry, text)
  local first, last, why, past = string.match(text, '^%d+ %d+ %d+ (%d+) (%d+) (%d+)\n()')
  local id, headers, key, lane, from
  if past then
    id, headers, key, lane, from = string.match(text, '^(%d+) (%d+) (%d+) (%d+)\n()', past + first + last + why)
  end
  if not from or #text < from - 1 + id + headers + key + lane then return 'foreign-' .. entry end
  local past_id = from + id + headers
  return string.sub(text, from, from + id - 1), key ~= '0' and string.sub(text, past_id, past_id + key - 1) or nil
end

-- It stands somewhere as the first of its key; another one is noted, or none.
local function unnoted(key, entry) fault(noted(key) and 'several_heads' or 'unindexed_head', key, entry) end

-- One that is ready, delayed or held: there is a message, and if that has a key, it is noted as the first of it.
local function comes_first(entry)
  say(entry)
  if #entry <= DIGITS then  -- it has no key: its text need not be read
    if redis.call('HEXISTS', base .. ':m', entry) == 0 then fault('missing', entry) end
    return
  end
  local text = text_at(entry)
  local key = text and key_of(text)
  if not text then fault('missing', entry) end
  if not key then return end
  local note = redis.call('HGET', base .. ':first', key)
  if note == (part == 'held' and entry .. ' ' .. which or entry) then return end
  if noted(key) ~= entry then return unnoted(key, entry) end
  fault('wrong_head', key)  -- with somebody else
end

local led = {}  -- key -> whether somebody comes first

local function stands_behind(entry)
  say(entry)
  local text = text_at(entry)
  local key = text and key_of(text)
  if not text then fault('missing', entry) end
  if not key or not redis.call('ZSCORE', base .. ':lines', line_of(key) .. entry) then fault('not_in_line', entry) end
  if key and led[key] == nil then led[key] = noted(key) ~= nil end
  if key and not led[key] then fault('no_head', key) end
end

-- Does it still stand where it was seen? The id, if it does; whose key is noted as led by it; whether others follow.
local function suspect(entry, where)
  local place, token = string.match(where, '^(%a*) ?(.*)$')
  if place == 'dead' then
    return { redis.call('HEXISTS', base .. ':dead', entry) == 1 and entry or '', '', '' }
  end
  local text = text_at(entry)
  if place == 'delayed' then text = redis.call('ZSCORE', base .. ':due', entry) and text end
  if place == 'behind' then text = is_behind(entry) and text end
  if place == 'held' then text = redis.call('ZSCORE', base .. ':h:' .. token, entry) and text end
  if not text then return { '', '', '' } end
  local key = key_of(text)
  if not key or noted(key) ~= entry then return { id_of(entry, text), '', '' } end
  local line = line_of(key)
  local others = redis.call('ZRANGEBYLEX', base .. ':lines', '[' .. line, '(' .. line .. ':', 'LIMIT', 0, 1)
  return { id_of(entry, text), key, others[1] and '1' or '' }
end

if part == 'messages' then
  hash(':m', function(entry, text)
    local id, key = id_of(entry, text)
    say(entry)
    say(id)
    bytes = bytes + #text
    -- An entry that does not say that it has a key is not looked at for one elsewhere.
    if key and #entry <= DIGITS and not is_behind(entry) and noted(key) ~= entry then unnoted(key, entry) end
  end)
elseif part == 'consumers' then
  hash(':who', say)
elseif part == 'lanes' then
  words, at = lanes, '0'
elseif part == 'held' then
  sorted_set(':h:' .. which, comes_first)
elseif part == 'delayed' then
  sorted_set(':due', comes_first)
elseif part == 'behind' then
  sorted_set(':behind', stands_behind)
elseif part == 'ready' then
  -- From its end: what is taken meanwhile moves nothing there.
  local line = base .. ':s:' .. which
  local entries = redis.call('LRANGE', line, -(at + most - 1), -at)
  for i = #entries, 1, -1 do
    comes_first(entries[i])
    looked = looked + 1
    if (looked >= most or bytes >= BYTES) and #words >= LEAST then break end
  end
  at = int(redis.call('LLEN', line))
elseif part == 'key_heads' then
  hash(':first', function(key)
    local entry, holder = noted(key)
    if not entry or holder ~= '' and not redis.call('ZSCORE', base .. ':h:' .. holder, entry) then
      fault('wrong_head', key)
    end
  end)
elseif part == 'key_lines' then
  sorted_set(':lines', function(line)
    local length, from = string.match(line, '^(%d+):()')
    local past = (from or 1) + (length or 0)
    local key, entry = string.sub(line, from or 1, past - 1), string.sub(line, past)
    if key_at(entry) ~= key or not is_behind(entry) then fault('not_in_line', entry) end
  end)
elseif part == 'dead_letters' then
  hash(':dead', function(id, letter)
    say(id)
    bytes = bytes + #letter
    local died = string.match(letter, '^(%d+) ')
    if not died or not redis.call('ZSCORE', base .. ':died', place_of(died, id)) then fault('dead_not_in_order', id) end
  end)
elseif part == 'dead_order' then
  sorted_set(':died', function(place)
    local id = string.sub(place, 22)
    local letter = redis.call('HGET', base .. ':dead', id)
    local died = letter and string.match(letter, '^(%d+) ')
    bytes = bytes + (letter and #letter or 0)
    if not died or place_of(died, id) ~= place then fault('missing', place) end
  end)
else
  for i = 7, #ARGV, 2 do
    for _, word in ipairs(suspect(ARGV[i], ARGV[i + 1])) do say(word) end
    if bytes >= BYTES and i >= 7 + 2 * FEW then break end
  end
end

-- Which run of a server, and whose data: a replica that begins again with those of another one is not the same any more.
local by = ''
for section, name in pairs({ server = 'run_id', replication = 'master_replid' }) do
  local told = redis.pcall('INFO', section)
  by = by .. (type(told) == 'string' and string.match(told, name .. ':(%w+)') or '')
end
return { 'sighted', at, words, faults, by }
