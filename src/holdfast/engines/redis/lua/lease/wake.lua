-- Wake the waiter that has just got the offer: the last write, through pcall, because it may fail.
--
-- KEYS[1]  record
-- ARGV     as in lease/record.lua
--
-- Returns  nothing

if pops then
  local wakeup_key = base .. ':wakeup:' .. holder_token
  redis.pcall('RPUSH', wakeup_key, '1')
  redis.pcall('PEXPIRE', wakeup_key, OFFER_MAX_US / 1000)
else
  redis.pcall('PUBLISH', client, holder_token)
end
