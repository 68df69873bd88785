-- Count what was really spent. What belongs to a period that is over is history.
--
-- KEYS[1]  tally
-- ARGV[1]  token
-- ARGV[2]  began_us  of the period in which it was put aside
-- ARGV[3]  actual
--
-- Returns  {'spent', 1 or 0, spent, reserved, began_us, reset_us, retry_us}
--
-- Same law as rules/budget.py: settle.

--@include counters/account.lua
local SETTLED_US = 10000000
local known = aside[ARGV[1]]
if tonumber(ARGV[2]) == began and known and not known[3] then
  spent = spent + ARGV[3]
  aside[ARGV[1]] = { 0, now + SETTLED_US, true }
  redis.call('DEL', KEYS[1] .. ':-')  -- never there: at maxmemory the first write must be one that frees
  keep()
end
return told(known)
