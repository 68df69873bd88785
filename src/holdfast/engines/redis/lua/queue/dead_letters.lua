-- Return a page of dead letters, or one of them.
--
-- KEYS[1]  the name's own key
-- ARGV[3]  operation  `list` or `get`
-- ARGV[4]  which      list: the position after which the page begins, empty for the first; get: the id
-- ARGV[5]  limit
--
-- Returns  {'dead letters', last, text…}
--
-- Twin of rules/queue/dead_letters.py: list_dead_letters, get_dead_letter.

--@include queue/parts.lua
--@const QUEUES = commands.queue_admin.QUEUES
local base = KEYS[1] .. ':' .. QUEUES
if ARGV[3] == 'get' then return { 'dead letters', '', redis.call('HGET', base .. ':dead', ARGV[4]) or nil } end
local after, limit = ARGV[4] == '' and '-' or '(' .. ARGV[4], tonumber(ARGV[5])
local positions, ids = redis.call('ZRANGEBYLEX', base .. ':dead_order', after, '+', 'LIMIT', 0, limit), {}
if #positions == 0 then return { 'dead letters', '' } end
for i, position in ipairs(positions) do ids[i] = string.sub(position, 22) end
local answer = { 'dead letters', #positions == limit and positions[#positions] or '' }
each_part(ids, function(...)
  for _, text in ipairs(redis.call('HMGET', base .. ':dead', ...)) do
    if text then answer[#answer + 1] = text end
  end
end)
return answer
