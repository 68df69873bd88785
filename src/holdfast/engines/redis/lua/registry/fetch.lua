-- The oldest messages in a box, after those that were read have been taken out.
--
-- KEYS[1]  record
-- ARGV[1]  place   the directory's key
-- ARGV[2]  token   whose box
-- ARGV[3…] read    messages that have arrived: what is not named here stays, because its answer may have been lost
--
-- Returns  {'messages', then message_id, a new line, text of each}
--
-- Same law as rules/registry.py: entry.

local AT_ONCE = 100
local box, known = ARGV[1] .. ':p:' .. ARGV[2], {}
for i = 3, #ARGV do known[ARGV[i]] = true end
local found = redis.call('LRANGE', box, 0, #ARGV - 3 + AT_ONCE)
local read = 0
while found[read + 1] and known[string.match(found[read + 1], '^(.-)\n')] do read = read + 1 end
if read > 0 then redis.call('LTRIM', box, read, -1) end
local answer = { 'messages' }
for i = read + 1, math.min(#found, read + AT_ONCE) do answer[#answer + 1] = found[i] end
return answer
