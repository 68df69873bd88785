-- Put a message_id into the box of whoever holds the entry, and wake it.
--
-- KEYS[1]  record
-- ARGV[1…2]         as lease/record.lua
-- ARGV[3]  place    the directory's key; the box is :p:TOKEN behind it, a list: message_id, a new line, text
-- ARGV[4]  message_id
-- ARGV[5]  text
--
-- Returns  {'done'} | {'not held', 'no owner', ''} | {'full', messages}
--
-- Same law as rules/registry.py: entry.

--@include lease/record.lua
if not holder or expires <= now or offered then return { 'not held', 'no owner', '' } end
local box = ARGV[3] .. ':p:' .. holder
if redis.call('LLEN', box) >= 1000 then return { 'full', 1000 } end
redis.call('RPUSH', box, ARGV[4] .. '\n' .. ARGV[5])
redis.call('PEXPIRE', box, 3600000)
redis.pcall('PUBLISH', client, holder)  -- last: a missing right makes it late, and nothing else
return { 'done' }
