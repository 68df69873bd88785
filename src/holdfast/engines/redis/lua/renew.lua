-- Restart the ttl of a lease that is still the caller's; a lapsed one stays lapsed.
--
-- KEYS[1]  record
-- ARGV[5]  token
-- ARGV[6]  ttl_ms
--
-- Returns  {'renewed'} | {'not held', why, detail}
--
-- Same law as rules/lease.py: renew.

--@include record.lua
local store
if not quiet or not holder or holder.token ~= ARGV[5] or holder.expires <= now then
  --@include queue.lua
  settle()
  if not holder or holder.token ~= ARGV[5] or holder.offered then
    commit()
    return not_held(ARGV[5])
  end
  store = commit
end

holder.ttl = tonumber(ARGV[6])
holder.expires = now + holder.ttl * 1000
freeing = true
if store then
  store()
else
  --@include write.lua
end
return { 'renewed' }
