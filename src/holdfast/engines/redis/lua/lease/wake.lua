-- Wake the waiter to whom the lease has just been offered: the last of all writes, and by pcall, because it may fail.
--
-- KEYS[1]  record
-- ARGV     as in lease/record.lua
--
-- Returns  nothing

if pops then
  local bell = base .. ':k:' .. holder
  redis.pcall('RPUSH', bell, '1')
  redis.pcall('PEXPIRE', bell, OFFER_US / 1000)
else
  redis.pcall('PUBLISH', client, holder)
end
