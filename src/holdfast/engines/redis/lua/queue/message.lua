-- Parse and write the text of a message.
--
-- KEYS[1], ARGV[1…2]  as queue/state.lua
--
-- Returns  nothing; it defines the functions read, text_of and lane_of.
--
-- A message is one text. `published attempts crashes #first #last #error`, a new line, first consumer, last consumer, last
-- error; then, as its producer has made it and never changed: `#id #headers #key #lane`, a new line, id, headers, key,
-- lane, body. The numbers are lengths in bytes. Any other text was written by another program: it becomes the body of a
-- message whose id is `foreign-` and the entry.

--@const QUARANTINE_AT = rules.queue.state.QUARANTINE_AT
local function longest(...)
  local found = 0
  for _, digits in ipairs({ ... }) do found = math.max(found, #digits) end
  return found
end

local function read(entry, text)
  local published, attempts, crashes, first, last, failure, at =
    string.match(text, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+)\n()')
  local short = published and #published <= 16 and longest(attempts, crashes, first, last, failure) <= 9
  local tail = short and string.sub(text, at + first + last + failure)
  local id, headers, key, lane, from
  if tail then id, headers, key, lane, from = string.match(tail, '^(%d+) (%d+) (%d+) (%d+)\n()') end
  if not from or longest(id, headers, key, lane) > 9 or #tail < from - 1 + id + headers + key + lane then
    local name = 'foreign-' .. entry
    tail = #name .. ' 0 0 0\n' .. name .. text
    return {
      published = '0', attempts = 0, crashes = 0, first_consumer = '', last_consumer = '', last_error = '', tail = tail,
      id = name, lane = '',
    }
  end
  local past = from + id + headers
  return {
    published = published, attempts = tonumber(attempts), crashes = tonumber(crashes),
    first_consumer = string.sub(text, at, at + first - 1),
    last_consumer = string.sub(text, at + first, at + first + last - 1),
    last_error = string.sub(text, at + first + last, at + first + last + failure - 1),
    tail = tail, id = string.sub(tail, from, from + id - 1),
    key = key ~= '0' and string.sub(tail, past, past + key - 1) or nil,
    lane = string.sub(tail, past + key, past + key + lane - 1),
  }
end

local function text_of(message)
  return message.published .. ' ' .. message.attempts .. ' ' .. message.crashes .. ' ' .. #message.first_consumer .. ' '
    .. #message.last_consumer .. ' ' .. #message.last_error .. '\n' .. message.first_consumer .. message.last_consumer
    .. message.last_error .. message.tail
end

local function lane_of(message) return message.crashes >= QUARANTINE_AT and QUARANTINE or message.lane end
