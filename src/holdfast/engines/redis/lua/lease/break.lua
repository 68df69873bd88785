-- End the lease under this fence by force: the fence grows, and its holder will be told why.
--
-- KEYS[1]  record
-- ARGV[3]  fence
-- ARGV[4]  reason
--
-- Returns  1 | {'not held', 'no such lease', ''}
--
-- Same law as rules/lease.py: break_.

--@include lease/record.lua
--@include lease/waiting_line.lua
settle()
if not holder or int(held) ~= ARGV[3] then
  commit()
  return { 'not held', 'no such lease', '' }
end

entomb(holder, math.max(TOMB_US, 2 * ttl * 1000), 'broken', ARGV[4])
free()
next_fence()
offer_first()
commit()
return 1
