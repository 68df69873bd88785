-- The common hand-over: everybody who waits lives, and the first of them is next.
--
-- KEYS[1]  record
-- ARGV     as in lease/release.lua
--
-- Returns  1; or nothing, if it is not that simple: then nothing has been written, and lease/waiting_line.lua decides
--
-- Same law as there. The next holder waits for every line of this, and the tables and functions of lease/waiting_line.lua would take
-- as long as all the rest.

local queue, seats = base .. ':q', base .. ':w'
local heir = redis.call('ZRANGE', queue, 0, 0)[1]
local seat = heir and redis.call('HGET', seats, heir)
if seat and not redis.call('ZRANGEBYSCORE', base .. ':m', '-inf', now)[1] then
  local _, pops
  holder, last, waiting = heir, token, waiting - 1
  client, ttl, _, owner, pops = cmsgpack.unpack(seat)
  fence = math.max(fence + 1, now)
  held, since, expires, offered = fence, now, now + math.min(ttl * 1000, OFFER_US), true
  redis.call('ZREM', queue, heir)
  redis.call('HDEL', seats, heir)
  --@include lease/write.lua
  --@include lease/wake.lua
  return 1
end
