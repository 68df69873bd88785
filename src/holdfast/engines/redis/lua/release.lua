-- Free the lease and offer it on, in one step; the same token may say so twice.
--
-- KEYS[1]  record
-- ARGV[5]  token
-- ARGV[6]  entomb  1 to refuse the token from now on
-- ARGV[7]  heir    token of the waiter that is to have it next, or empty
--
-- Returns  {'released'} | {'not held', why, detail}
--
-- Same law as rules/lease.py: release.

--@include record.lua
local token, heir = ARGV[5], ARGV[7]
freeing = true
if quiet and ARGV[6] ~= '1' and holder and holder.token == token and holder.expires > now then
  holder, last = nil, token
  --@include write.lua
  return { 'released' }
end

--@include queue.lua
settle()
if not holder or holder.token ~= token then
  local again = token == last
  commit()
  return again and { 'released' } or not_held(token)
end

holder, last = nil, token
if ARGV[6] == '1' then entomb(token, TOMB_US, 'released', '') end
local first = place_of(heir) and heir or order[1]
if first then offer(first) end
commit()
return { 'released' }
