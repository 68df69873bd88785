-- Grant or refuse, unless a note says that the work was done.
--
-- KEYS[1]  record  and beside it :o, a string: the note, which expires by itself
-- ARGV     as lease/acquire.lua
--
-- Returns  {'finished', note, 1} | as lease/acquire.lua
--
-- Same law as rules/once.py: compound.

local note = redis.call('GET', KEYS[1] .. ':o')
if note then return { 'finished', note, 1 } end
--@include lease/acquire.lua
