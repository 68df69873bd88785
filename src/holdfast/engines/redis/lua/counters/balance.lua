-- How an account stands. Changes nothing.
--
-- KEYS[1]  tally
-- ARGV     nothing
--
-- Returns  {'spent', 1, spent, reserved, began_us, reset_us, retry_us}
--
-- Same law as rules/budget.py: balance.

--@include counters/account.lua
return told(true)
