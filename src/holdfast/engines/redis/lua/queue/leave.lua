-- This consumer ends; what it has is ready for others, as if it had never been taken.
--
-- KEYS[1]  the name's own key
-- ARGV[3]  token
--
-- Returns  1 | {'leaving'} if there is more than one step may carry | {'unknown consumer'}
--
-- Same law as rules/queue/consumers.py: leave.

--@include queue/state.lua
--@include queue/messages.lua
local token = ARGV[3]
local who = living(token)
if not who then return { 'unknown consumer' } end
local mine = base .. ':h:' .. token
local entries = redis.call('ZRANGE', mine, 0, BATCH_MAX - 1)
local found, given, over = texts_of(entries), 0, redis.call('ZCARD', mine) <= BATCH_MAX
for i, entry in ipairs(entries) do
  if found[i] then given = given + again(entry, found[i]) end
end
redis.call('ZCARD', base .. ':ends')
redis.call('ZCARD', base .. ':hungry')
check()
make_way()
store()
if #entries > 0 then
  redis.call('HDEL', base .. ':m', unpack(entries))
  redis.call('ZREM', mine, unpack(entries))
end
if over then
  drop_member(token, who)
else  -- nobody renews it any more, but whoever speaks lives
  who[ENDS] = now + who[TTL] * 1000
  put_member(token, who)
  redis.call('ZREM', base .. ':hungry', token)
end
count('released', given)
ring(given)
save(over)
wake()
return over and 1 or { 'leaving' }
