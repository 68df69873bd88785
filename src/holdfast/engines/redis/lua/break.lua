-- End the lease under this fence by force: the fence grows, and its holder will be told why.
--
-- KEYS[1]  record
-- ARGV[5]  fence
-- ARGV[6]  reason
--
-- Returns  {'released'} | {'not held', 'no such lease', ''}
--
-- Same law as rules/lease.py: break_.

--@include record.lua
--@include queue.lua
settle()
if not holder or int(holder.fence) ~= ARGV[5] then
  commit()
  return { 'not held', 'no such lease', '' }
end

entomb(holder.token, math.max(TOMB_US, 2 * holder.ttl * 1000), 'broken', ARGV[6])
holder = nil
next_fence()
read_queue()
if order[1] then offer(order[1]) end
commit()
return { 'released' }
