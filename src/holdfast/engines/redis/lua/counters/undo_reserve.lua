-- Free the amount of a reservation that no caller has, and refuse late copies of its Reserve.
--
-- KEYS[1]  counter
-- ARGV[1]  token
-- ARGV[2]  period_ms  of the period that begins if none has
--
-- Returns  {'balance', 1, spent, reserved, began_us, reset_us, retry_us}
--
-- Twin of rules/budget.py: undo_reserve.

--@include counters/account.lua
--@include counters/account_write.lua
--@const UNDONE_US = rules.budget.UNDONE_US
local known = reservations[ARGV[1]]
if not known or not known[3] then
  begin(ARGV[2])
  reservations[ARGV[1]] = { 0, now + UNDONE_US, true }
  redis.call('DEL', KEYS[1] .. ':-')  -- never exists: at maxmemory the first write must be one that frees memory
  store()
end
return balance(true)
