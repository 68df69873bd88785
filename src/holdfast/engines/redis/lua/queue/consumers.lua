-- The consumers; those whose ttl ends first come first.
--
-- KEYS[1]  the name's own key
-- ARGV[3]  limit
--
-- Returns  {'rolled', token, label, owner, fence, held, since_ms, remaining_ms, …}
--
-- Same law as rules/queue/dead_letters.py: roll.

--@include queue/state.lua
local answer = { 'rolled' }
if ARGV[3] == '0' then return answer end
for _, token in ipairs(redis.call('ZRANGE', base .. ':ends', 0, ARGV[3] - 1)) do
  local who = member(token)
  if who then
    local seen = {
      token, who[LABEL], who[OWNER], int(who[FENCE]), redis.call('ZCARD', base .. ':h:' .. token),
      math.floor((now - who[SINCE]) / 1000), math.floor(math.max(0, who[ENDS] - now) / 1000),
    }
    for _, each in ipairs(seen) do answer[#answer + 1] = each end
  end
end
return answer
