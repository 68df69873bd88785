-- The note, if one is kept. Changes nothing.
--
-- KEYS[1]  tally  string: the note, which expires by itself
-- ARGV     nothing
--
-- Returns  {'finished', note, 1} | {'finished', '', 0}
--
-- Same law as rules/once.py: seen.

local note = redis.call('GET', KEYS[1])
if not note then return { 'finished', '', 0 } end
return { 'finished', note, 1 }
