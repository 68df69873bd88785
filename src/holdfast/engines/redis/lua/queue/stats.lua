-- Return how many messages are in each place, and the counters.
--
-- KEYS[1]  the name's own key
-- ARGV     nothing more
--
-- Returns  {'counts', ready, quarantined, delayed, held, dead, waiting, consumers, oldest_ms, next_ms, behind, counter,
--          count…}
--
-- Twin of rules/queue/inspection.py: get_stats.

--@include queue/state.lua
local ready, oldest = 0, -1
for _, lane in ipairs(lanes) do
  if lane ~= QUARANTINE then
    ready = ready + redis.call('LLEN', base .. ':ready:' .. lane)
    local first = redis.call('LINDEX', base .. ':ready:' .. lane, 0)
    local text = first and redis.call('HGET', base .. ':messages', first)
    local published = text and string.match(text, '^(%d+) ')
    if published then oldest = math.max(oldest, math.floor(math.max(0, now - published) / 1000)) end
  end
end
local quarantined = redis.call('LLEN', base .. ':ready:' .. QUARANTINE)
local delayed, behind = redis.call('ZCARD', base .. ':delayed'), redis.call('ZCARD', base .. ':behind')
local held = redis.call('HLEN', base .. ':messages') - ready - quarantined - delayed - behind
local answer = {
  'counts', ready, quarantined, delayed, held, redis.call('HLEN', base .. ':dead'),
  redis.call('ZCARD', base .. ':waiting'), redis.call('HLEN', base .. ':consumers'), oldest, due_ms(), behind,
}
for counter, count in pairs(counts) do
  answer[#answer + 1] = counter
  answer[#answer + 1] = count
end
return answer
