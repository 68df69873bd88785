-- End a token that its caller has given up, whether it has an item, an offer or a place in the line. Leave a tombstone, so
-- that a late copy of its borrow is refused.
--
-- KEYS[1]  the name's own key
-- ARGV[4]  token
--
-- Returns  1
--
-- Twin of rules/pool.py: undo_borrow.

--@include pool/state.lua
--@include pool/waiting_line.lua
--@include pool/advance.lua
--@include pool/tombstones.lua
--@include pool/commit.lua
--@const UNDONE = rules.lease.UNDONE
local token = ARGV[4]
allow_at_maxmemory()
advance()
if not find_tombstone(token) then add_tombstone(token, TOMBSTONE_US, UNDONE, '') end
leave_line(token)
local name, item = taken_by(token)
if item then free(name, item) end
offer_free_items()
commit(token)
return 1
