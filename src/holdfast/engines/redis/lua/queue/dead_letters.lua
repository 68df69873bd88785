-- Return a page of dead letters, their positions, or one of them.
--
-- KEYS[1]  the name's own key
-- ARGV[3]  operation  `list`, `positions` or `get`
-- ARGV[4]  which      the position after which the page begins, empty for the first; get: the id
-- ARGV[5]  limit
--
-- Returns  {'dead letters', last, text…} | {'dead positions', position…}
--
-- Twin of rules/queue/dead_letters.py: list_dead_letters, list_dead_positions, get_dead_letter.

--@const PAGE_BYTES = commands.queue.PAGE_BYTES
--@const QUEUES = commands.queue_admin.QUEUES
local base = KEYS[1] .. ':' .. QUEUES
if ARGV[3] == 'get' then return { 'dead letters', '', redis.call('HGET', base .. ':dead', ARGV[4]) or nil } end
local after, limit = ARGV[4] == '' and '-' or '(' .. ARGV[4], tonumber(ARGV[5])
local positions = redis.call('ZRANGEBYLEX', base .. ':dead_order', after, '+', 'LIMIT', 0, limit)
if ARGV[3] == 'positions' then return { 'dead positions', unpack(positions) } end
local answer, bytes = { 'dead letters', #positions > 0 and #positions == limit and positions[#positions] or '' }, 0
for _, position in ipairs(positions) do
  local text = redis.call('HGET', base .. ':dead', string.sub(position, 22))
  if text then
    answer[#answer + 1], bytes = text, bytes + #text
    if bytes >= PAGE_BYTES then
      answer[2] = position
      break
    end
  end
end
return answer
