-- One more consumer, or the same one again.
--
-- KEYS[1]  the name's own key
-- ARGV[3]  token
-- ARGV[4]  owner
-- ARGV[5]  label
-- ARGV[6]  ttl_ms
--
-- Returns  fence
--
-- Same law as rules/consumers.py: join.

--@include queue_depot.lua
local ttl = tonumber(ARGV[6])
local who = member(ARGV[3])
if who then
  who[TTL], who[ENDS] = ttl, now + ttl * 1000
else
  who = { me, ARGV[4], ARGV[5], next_fence(1), ttl, now, now + ttl * 1000, false }
end
make_way()  -- whoever comes will free memory: a queue that fills the server must not keep out who would empty it
put_member(ARGV[3], who)
save()
return int(who[FENCE])
