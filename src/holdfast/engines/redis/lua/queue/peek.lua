-- Return the first messages of a place, and leave them there.
--
-- KEYS[1]  the name's own key
-- ARGV[3]  place  `ready`, `delayed`, `held` or `behind`
-- ARGV[4]  limit
-- ARGV[5]  lane   of ready messages
--
-- Returns  {'peeked', entry, text, token or empty, due_ms, …}
--
-- Twin of rules/queue/inspection.py: peek. Of each consumer, it reads the oldest deliveries.

--@include queue/state.lua
--@const DELAYED = commands.queue.DELAYED
--@const HELD = commands.queue.HELD
--@const BEHIND = commands.queue.BEHIND
local limit = tonumber(ARGV[4])
if limit == 0 then return { 'peeked' } end
local entries, tokens, dues = {}, {}, {}
if ARGV[3] == DELAYED then
  local found = redis.call('ZRANGE', base .. ':delayed', 0, limit - 1, 'WITHSCORES')
  for i = 1, #found, 2 do
    entries[#entries + 1] = found[i]
    dues[found[i]] = math.floor(math.max(0, found[i + 1] - now) / 1000)
  end
elseif ARGV[3] == HELD then
  for _, token in ipairs(redis.call('ZRANGE', base .. ':expiries', 0, -1)) do
    for _, entry in ipairs(redis.call('ZRANGE', base .. ':held:' .. token, 0, limit - 1)) do
      entries[#entries + 1] = entry
      tokens[entry] = token
    end
  end
  table.sort(entries)
elseif ARGV[3] == BEHIND then
  entries = redis.call('ZRANGE', base .. ':behind', 0, limit - 1)
else
  entries = redis.call('LRANGE', base .. ':ready:' .. ARGV[5], 0, limit - 1)
end
local answer = { 'peeked' }
for i = 1, math.min(#entries, limit) do
  local entry = entries[i]
  local text = redis.call('HGET', base .. ':messages', entry)
  if text then
    for _, each in ipairs({ entry, text, tokens[entry] or '', dues[entry] or 0 }) do answer[#answer + 1] = each end
  end
end
return answer
