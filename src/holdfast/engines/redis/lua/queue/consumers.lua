-- Return the consumers, the first to expire first.
--
-- KEYS[1]  the name's own key
-- ARGV[3]  limit
--
-- Returns  {'consumers', token, label, holder, fence, held, since_ms, remaining_ms, …}
--
-- Twin of rules/queue/inspection.py: list_consumers.

--@include queue/state.lua
--@include queue/consumer_read.lua
local answer = { 'consumers' }
if ARGV[3] == '0' then return answer end
for _, token in ipairs(redis.call('ZRANGE', base .. ':expiries', 0, ARGV[3] - 1)) do
  local consumer = get_consumer(token)
  if consumer then
    local values = {
      token, consumer[LABEL], consumer[HOLDER], int(consumer[FENCE]), redis.call('ZCARD', base .. ':held:' .. token),
      math.floor((now - consumer[SINCE]) / 1000), math.floor(math.max(0, consumer[EXPIRES] - now) / 1000),
    }
    for _, value in ipairs(values) do answer[#answer + 1] = value end
  end
end
return answer
