-- Reserve an amount, unless the total would exceed the limit; an equal total is allowed.
--
-- KEYS[1]  counter
-- ARGV[1]  token
-- ARGV[2]  amount
-- ARGV[3]  limit      -1 for no limit: then the total is at most SUM_MAX
-- ARGV[4]  period_ms
-- ARGV[5]  hold_ms
--
-- Returns  {'balance', 1 or 0, spent, reserved, began_us, reset_us, retry_us}
--
-- Twin of rules/budget.py: reserve.

--@include counters/account.lua
--@include counters/account_write.lua
--@const SUM_MAX = rules.budget.SUM_MAX
local token, amount, limit = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local known = reservations[token]
if known and known[2] > now then return balance(not known[3]) end
if limit < 0 then limit = SUM_MAX end
if spent + reserved() + amount > limit then return balance(false) end

begin(ARGV[4])
reservations[token] = { amount, now + ARGV[5] * 1000, false }
store()
return balance(true)
