-- Delete a counter.
--
-- KEYS[1]  counter
-- ARGV     nothing
--
-- Returns  {'done'}
--
-- Twin of rules/limit.py: reset.

redis.call('DEL', KEYS[1])
return { 'done' }
