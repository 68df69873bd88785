-- Nothing was counted so far.
--
-- KEYS[1]  tally
-- ARGV     nothing
--
-- Returns  {'done'}
--
-- Same law as rules/limit.py: forget.

redis.call('DEL', KEYS[1])
return { 'done' }
