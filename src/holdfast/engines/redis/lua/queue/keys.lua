-- The keys of what is with a consumer, the oldest first.
--
-- KEYS[1]  the name's own key
-- ARGV[3]  token
-- ARGV[4]  limit  of the messages that are looked at
--
-- Returns  {'keys held', held, key…}
--
-- Same law as rules/queue/consumers.py: list_keys.

--@include queue/state.lua
--@include queue/messages.lua
local theirs = base .. ':h:' .. ARGV[3]
local answer, entries = { 'keys held', redis.call('ZCARD', theirs) }, {}
if ARGV[4] == '0' then return answer end
for _, entry in ipairs(redis.call('ZRANGE', theirs, 0, ARGV[4] - 1)) do
  if #entry > DIGITS then entries[#entries + 1] = entry end
end
for _, text in ipairs(texts_of(entries)) do answer[#answer + 1] = text and key_of(text) or nil end
return answer
