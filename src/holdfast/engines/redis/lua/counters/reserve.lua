-- Put an amount aside, unless that would be more than the limit; equal passes.
--
-- KEYS[1]  tally
-- ARGV[1]  token
-- ARGV[2]  amount
-- ARGV[3]  limit      -1 for any amount
-- ARGV[4]  period_ms
-- ARGV[5]  hold_ms
--
-- Returns  {'spent', 1 or 0, spent, reserved, began_us, reset_us, retry_us}
--
-- Same law as rules/budget.py: reserve.

--@include counters/account.lua
local token, amount, limit = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local known = aside[token]
if known and known[2] > now then return told(not known[3]) end
if limit >= 0 and spent + put_aside() + amount > limit then return told(false) end

if ends == 0 then began, ends = now, now + ARGV[4] * 1000 end
aside[token] = { amount, now + ARGV[5] * 1000, false }
keep()
return told(true)
