-- Return the marker, if it is stored. Changes nothing.
--
-- KEYS[1]  counter  string that expires: the marker
-- ARGV     nothing
--
-- Returns  {'done marker', marker, 1} | {'done marker', '', 0}
--
-- Twin of rules/once.py: is_done.

local marker = redis.call('GET', KEYS[1])
if not marker then return { 'done marker', '', 0 } end
return { 'done marker', marker, 1 }
