-- End a token that nobody owns, wherever it stands, and refuse what still comes under it.
--
-- KEYS[1]  record
-- ARGV[3]  token
--
-- Returns  1
--
-- Same law as rules/lease.py: undo.

--@include lease/record.lua
--@include lease/waiting_line.lua
local token = ARGV[3]
settle()
if not tomb(token) then entomb(token, TOMB_US, 'undone', '') end
leave_queue(token)
if holder == token then free() end
if not holder then offer_first() end
commit()
return 1
