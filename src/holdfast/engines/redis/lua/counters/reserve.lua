-- Reserve an amount, unless the total would exceed the limit; an equal total is allowed.
--
-- KEYS[1]  counter
-- ARGV[1]  token
-- ARGV[2]  amount
-- ARGV[3]  limit      -1 for no limit
-- ARGV[4]  period_ms
-- ARGV[5]  hold_ms
--
-- Returns  {'balance', 1 or 0, spent, reserved, began_us, reset_us, retry_us}
--
-- Twin of rules/budget.py: reserve.

--@include counters/account.lua
--@include counters/account_write.lua
local token, amount, limit = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local known = reservations[token]
if known and known[2] > now then return balance(not known[3]) end
if limit >= 0 and spent + reserved() + amount > limit then return balance(false) end

if ends == 0 then began, ends = now, now + ARGV[4] * 1000 end
reservations[token] = { amount, now + ARGV[5] * 1000, false }
store()
return balance(true)
