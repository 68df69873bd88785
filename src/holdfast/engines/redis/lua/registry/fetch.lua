-- Return the oldest messages of a mailbox, after deleting those that the owner has read.
--
-- KEYS[1]   record of the entry
-- ARGV[3]   token  of the mailbox's owner
-- ARGV[4…]  read   ids of messages that arrived; any other message stays, because its answer may have been lost
--
-- Returns  {'messages', then message id, a new line, text of each}
--
-- Twin of rules/registry.py: fetch_mail.

--@include registry/keys.lua
--@const FETCH_MAX = rules.registry.FETCH_MAX
local mailbox, known = registry .. ':mailbox:' .. ARGV[3], {}
for i = 4, #ARGV do known[ARGV[i]] = true end
local found = redis.call('LRANGE', mailbox, 0, #ARGV - 4 + FETCH_MAX)
local read = 0
while found[read + 1] and known[string.match(found[read + 1], '^(.-)\n')] do read = read + 1 end
if read > 0 then redis.call('LTRIM', mailbox, read, -1) end
local answer = { 'messages' }
for i = read + 1, math.min(#found, read + FETCH_MAX) do answer[#answer + 1] = found[i] end
return answer
