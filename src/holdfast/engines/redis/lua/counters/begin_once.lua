-- Grant or refuse the lease, unless a marker says that its work was done.
--
-- KEYS[1]  record  and beside it :o, a string that expires: the marker
-- ARGV     as lease/acquire.lua
--
-- Returns  {'done marker', marker, 1} | as lease/acquire.lua
--
-- Twin of rules/once.py: begin.

local marker = redis.call('GET', KEYS[1] .. ':o')
if marker then return { 'done marker', marker, 1 } end
--@include lease/acquire.lua
