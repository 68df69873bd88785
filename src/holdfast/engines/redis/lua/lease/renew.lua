-- Restart the ttl of a lease that is still the caller's; a lapsed one stays lapsed.
--
-- KEYS[1]  record
-- ARGV[3]  token
-- ARGV[4]  ttl_ms
--
-- Returns  now_us | {'not held', why, detail, now_us}
--
-- Same law as rules/lease.py: renew.

--@include lease/record.lua
if holder ~= ARGV[3] or expires <= now or offered then
  if alone then return { err = 'TRYAGAIN the queue of this name is on its way' } end
  --@include lease/waiting_line.lua
  settle()
  commit()
  local refusal = not_held(ARGV[3])
  refusal[4] = now
  return refusal
end

ttl = tonumber(ARGV[4])
expires = now + ttl * 1000
freeing = true
--@include lease/write.lua
return now
