-- Return the keys of the messages that a consumer holds, the oldest delivery first.
--
-- KEYS[1]  the name's own key
-- ARGV[3]  token
-- ARGV[4]  limit  of the messages that are read
--
-- Returns  {'keys held', held, key…}
--
-- Twin of rules/queue/consumers.py: list_keys.

--@include queue/state.lua
--@include queue/text.lua
--@include queue/texts.lua
local held = base .. ':held:' .. ARGV[3]
local answer, entries = { 'keys held', redis.call('ZCARD', held) }, {}
if ARGV[4] == '0' then return answer end
for _, entry in ipairs(redis.call('ZRANGE', held, 0, ARGV[4] - 1)) do
  if has_key(entry) then entries[#entries + 1] = entry end
end
for _, text in ipairs(texts_of(entries)) do answer[#answer + 1] = text and key_of(text) or nil end
return answer
