-- Count the amount that was really spent. A reservation of an earlier period changes nothing.
--
-- KEYS[1]  counter
-- ARGV[1]  token
-- ARGV[2]  began_us  of the period in which the amount was reserved
-- ARGV[3]  actual
--
-- Returns  {'balance', 1 or 0, spent, reserved, began_us, reset_us, retry_us}
--
-- Twin of rules/budget.py: settle.

--@include counters/account.lua
--@include counters/account_write.lua
--@const SUM_MAX = rules.budget.SUM_MAX
--@const SETTLED_US = rules.budget.SETTLED_US
local known = reservations[ARGV[1]]
if tonumber(ARGV[2]) == began and known and not known[3] then
  if spent + ARGV[3] > SUM_MAX then return balance(false) end
  spent = spent + ARGV[3]
  reservations[ARGV[1]] = { 0, now + SETTLED_US, true }
  redis.call('DEL', KEYS[1] .. ':-')  -- never exists: at maxmemory the first write must be one that frees memory
  store()
end
return balance(known)
