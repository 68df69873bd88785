-- This consumer ends; what it has is ready for others, as if it had never been taken.
--
-- KEYS[1]  the name's own key
-- ARGV[3]  token
--
-- Returns  1 | {'unknown consumer'}
--
-- Same law as rules/consumers.py: leave.

--@include queue_depot.lua
--@include queue_letters.lua
local token = ARGV[3]
local who = living(token)
if not who then return { 'unknown consumer' } end
local mine = base .. ':h:' .. token
local entries = redis.call('ZRANGE', mine, 0, -1)
local found, given = texts_of(entries), 0
for i, entry in ipairs(entries) do
  if found[i] then given = given + again(entry, found[i]) end
end
redis.call('ZCARD', base .. ':ends')
redis.call('ZCARD', base .. ':hungry')
check()
make_way()
store()
each_part(entries, function(...) redis.call('HDEL', base .. ':m', ...) end)
redis.call('DEL', mine)
drop_member(token, who)
count('released', given)
ring(given)
save(true)
wake()
return 1
