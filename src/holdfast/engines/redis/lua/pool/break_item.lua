-- End the lease of an item under this fence by force. The fence grows, the item cools, and the tombstone tells its
-- holder the reason.
--
-- KEYS[1]  the name's own key
-- ARGV[4]  item
-- ARGV[5]  fence
-- ARGV[6]  reason
--
-- Returns  1 | {'not held', reason, ''}
--
-- Twin of rules/pool.py: break_item.

--@include pool/state.lua
--@include pool/waiting_line.lua
--@include pool/advance.lua
--@include pool/tombstones.lua
--@include pool/cool.lua
--@include pool/commit.lua
--@const BROKEN = rules.lease.BROKEN
--@const NO_SUCH_LEASE = rules.lease.NO_SUCH_LEASE
local name = ARGV[4]
allow_at_maxmemory()
advance()
local item, unreadable = load(name)
if unreadable then
  commit()
  return unreadable
end
if not item or not taken(item) or int(item[FENCE]) ~= ARGV[5] then
  commit()
  return { 'not held', NO_SUCH_LEASE, '' }
end

add_tombstone(item[TOKEN], math.max(TOMBSTONE_US, 2 * item[TTL] * 1000), BROKEN, ARGV[6])
item[FENCE] = next_fence()
cool_or_free(name, item, item[STATE] == LENT and item[COOLDOWN] or 0)
commit()
return 1
