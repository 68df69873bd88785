-- End a token that its caller has given up, whether it holds the lease, has the offer or waits. Leave a tombstone, so that
-- a late copy of its acquire is refused.
--
-- KEYS[1]  record
-- ARGV[3]  token
--
-- Returns  1
--
-- Twin of rules/lease.py: undo.

--@include lease/record.lua
--@include lease/waiting_line.lua
--@include lease/tombstones.lua
--@include lease/commit.lua
--@const UNDONE = rules.lease.UNDONE
--@const TOMBSTONE_US = rules.lease.TOMBSTONE_US
local token = ARGV[3]
advance()
if not find_tombstone(token) then add_tombstone(token, TOMBSTONE_US, UNDONE, '') end
leave_line(token)
if holder_token == token then free() end
if not holder_token then offer_first() end
commit()
return 1
