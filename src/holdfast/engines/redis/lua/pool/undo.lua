-- End a token that nobody owns, wherever it stands, and refuse what still comes under it.
--
-- KEYS[1]  the name's own key
-- ARGV[4]  token
--
-- Returns  1
--
-- Same law as rules/pool.py: take_back.

--@include pool/pool.lua
local token = ARGV[4]
make_way()
settle()
if not tomb(token) then entomb(token, TOMB_US, 'undone', '') end
leave_queue(token)
local name, item = taken_by(token)
if item then free(name, item) end
hand_out()
commit(token)
return 1
