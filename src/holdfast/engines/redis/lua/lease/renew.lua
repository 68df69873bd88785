-- Restart the ttl of a lease that the token still holds. An expired lease stays expired.
--
-- KEYS[1]  record
-- ARGV[3]  token
-- ARGV[4]  ttl_ms
--
-- Returns  now_us | {'not held', reason, detail, now_us}
--
-- Twin of rules/lease.py: renew.

--@include lease/record.lua
if holder_token ~= ARGV[3] or expires <= now or offered then
  if record_only then return { err = 'TRYAGAIN the waiting line of this name is moving' } end
  --@include lease/waiting_line.lua
  --@include lease/tombstones.lua
  --@include lease/commit.lua
  advance()
  commit()
  local refusal = not_held(ARGV[3])
  refusal[4] = now
  return refusal
end

-- An extension may overtake shorter renewals, which must not shorten the lease: as long as its end is further away, the
-- longer ttl stays. Only a clock that was set back leaves an end beyond both.
local renewed_ttl = tonumber(ARGV[4])
if expires > now + renewed_ttl * 1000 then
  ttl = math.max(ttl, renewed_ttl)
  expires = math.min(expires, now + ttl * 1000)
else
  ttl = renewed_ttl
  expires = now + ttl * 1000
end
freeing = true
--@inline lease/write.lua
return now
