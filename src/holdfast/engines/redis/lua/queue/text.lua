-- Read stored messages without parsing all of them.
--
-- KEYS[1], ARGV[1…2]  as queue/state.lua
--
-- Returns  nothing; it defines the functions has_key and key_of.

--@include queue/parts.lua
local DIGITS = 16

-- Return whether the message has a key, without reading its text: the entry of a message with a key is a number and a `k`,
-- so it is longer.
local function has_key(entry) return #entry > DIGITS end

-- Return the key of a message; nothing if it has none. See queue/message.lua.
local function key_of(text)
  local first, last, failure, at = string.match(text, '^%d+ %d+ %d+ (%d+) (%d+) (%d+)\n()')
  if not at then return end
  local id, headers, key, from = string.match(text, '^(%d+) (%d+) (%d+) %d+\n()', at + first + last + failure)
  if not from or key == '0' or #text < from - 1 + id + headers + key then return end
  from = from + id + headers
  return string.sub(text, from, from + key - 1)
end
