-- How the queue stands.
--
-- KEYS[1]  the name's own key
-- ARGV     nothing more
--
-- Returns  {'gauged', ready, suspects, delayed, held, dead, hungry, consumers, oldest_ms, next_ms, behind, word, count…}
--
-- Same law as rules/queue/dead_letters.py: gauge.

--@include queue/state.lua
local ready, oldest = 0, -1
for _, lane in ipairs(lanes) do
  if lane ~= QUARANTINE then
    ready = ready + redis.call('LLEN', base .. ':s:' .. lane)
    local first = redis.call('LINDEX', base .. ':s:' .. lane, 0)
    local text = first and redis.call('HGET', base .. ':m', first)
    local sent = text and string.match(text, '^(%d+) ')
    if sent then oldest = math.max(oldest, math.floor(math.max(0, now - sent) / 1000)) end
  end
end
local suspects, delayed = redis.call('LLEN', base .. ':s:' .. QUARANTINE), redis.call('ZCARD', base .. ':due')
local others = redis.call('ZCARD', base .. ':behind')
local held = redis.call('HLEN', base .. ':m') - ready - suspects - delayed - others
local answer = {
  'gauged', ready, suspects, delayed, held, redis.call('HLEN', base .. ':dead'), redis.call('ZCARD', base .. ':hungry'),
  redis.call('HLEN', base .. ':who'), oldest, due_ms(), others,
}
for word, many in pairs(counts) do
  answer[#answer + 1] = word
  answer[#answer + 1] = many
end
return answer
