-- Read the texts and the fences of several entries.
--
-- KEYS[1], ARGV[1…2]  as queue/state.lua
--
-- Returns  nothing; it defines the functions texts_of and fences_of.

--@include queue/parts.lua
-- Return the texts of these entries, in their order; false for an entry without a message.
local function texts_of(entries)
  local found = {}
  each_part(entries, function(...)
    for _, text in ipairs(redis.call('HMGET', base .. ':messages', ...)) do found[#found + 1] = text end
  end)
  return found
end

-- Return the fences of these entries, in their order; false for an entry that the consumer does not hold.
local function fences_of(entries, token)
  local found = {}
  each_part(entries, function(...)
    for _, score in ipairs(redis.call('ZMSCORE', base .. ':held:' .. token, ...)) do found[#found + 1] = score end
  end)
  return found
end
