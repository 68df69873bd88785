-- This consumer still lives; also if that comes late.
--
-- KEYS[1]  the name's own key
-- ARGV[3]  token
-- ARGV[4]  ttl_ms
--
-- Returns  1 | {'unknown consumer'}
--
-- Same law as rules/queue/consumers.py: beat.

--@include queue/state.lua
local who = living(ARGV[3])
if not who then return { 'unknown consumer' } end
who[TTL] = tonumber(ARGV[4])
who[ENDS] = now + who[TTL] * 1000
make_way()
put_member(ARGV[3], who)
return 1
