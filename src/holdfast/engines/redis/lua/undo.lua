-- End a token that nobody owns, wherever it stands, and refuse what still comes under it.
--
-- KEYS[1]  record
-- ARGV[5]  token
--
-- Returns  {'done'}
--
-- Same law as rules/lease.py: undo.

--@include record.lua
--@include queue.lua
local token = ARGV[5]
settle()
if not tomb(token) then entomb(token, TOMB_US, 'undone', '') end
leave_queue(token)
if holder and holder.token == token then holder = nil end
if not holder and order[1] then offer(order[1]) end
commit()
return { 'done' }
