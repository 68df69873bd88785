-- Return the state of an account. Changes nothing.
--
-- KEYS[1]  counter
-- ARGV     nothing
--
-- Returns  {'balance', 1, spent, reserved, began_us, reset_us, retry_us}
--
-- Twin of rules/budget.py: balance.

--@include counters/account.lua
return balance(true)
