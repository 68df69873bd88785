-- End the lease under this fence by force. The fence grows, and the tombstone tells its holder the reason.
--
-- KEYS[1]  record
-- ARGV[3]  fence
-- ARGV[4]  reason
--
-- Returns  1 | {'not held', reason, ''}
--
-- Twin of rules/lease.py: break_.

--@include lease/record.lua
--@include lease/waiting_line.lua
--@include lease/tombstones.lua
--@include lease/commit.lua
--@const BROKEN = rules.lease.BROKEN
--@const NO_SUCH_LEASE = rules.lease.NO_SUCH_LEASE
--@const TOMBSTONE_US = rules.lease.TOMBSTONE_US
advance()
if not holder_token or int(held) ~= ARGV[3] then
  commit()
  return { 'not held', NO_SUCH_LEASE, '' }
end

add_tombstone(holder_token, math.max(TOMBSTONE_US, 2 * ttl * 1000), BROKEN, ARGV[4])
free()
next_fence()
offer_first()
commit()
return 1
