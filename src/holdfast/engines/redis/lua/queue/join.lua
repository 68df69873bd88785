-- One more consumer, or the same one again.
--
-- KEYS[1]  the name's own key
-- ARGV[3]  token
-- ARGV[4]  owner
-- ARGV[5]  label
-- ARGV[6]  ttl_ms
-- ARGV[7]  keeps  1 if it keeps messages for long
-- ARGV[8]  heard  1 if a key is to end with it, so that the server tells whoever has asked for that
--
-- Returns  fence | {'unknown consumer'} if it was taken for dead
--
-- Same law as rules/queue/consumers.py: join.

--@include queue/state.lua
local ttl = tonumber(ARGV[6])
local who = member(ARGV[3])
if who and who[FALLEN] then return { 'unknown consumer' } end
if who then
  who[TTL], who[ENDS] = ttl, now + ttl * 1000
else
  who = { me, ARGV[4], ARGV[5], next_fence(1), ttl, now, now + ttl * 1000, false, ARGV[7] == '1', ARGV[8] == '1' }
end
make_way()  -- whoever comes will free memory: a queue that fills the server must not keep out who would empty it
put_member(ARGV[3], who)
save()
return int(who[FENCE])
