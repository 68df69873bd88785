-- Return a page of the held entries of an index, and remove the entries that are no longer held.
--
-- KEYS[1]  the registry's own key
-- ARGV[3]  index   `k` for all entries, or the name of another index: see registry/keys.lua
-- ARGV[4]  prefix
-- ARGV[5]  after   the last entry of the page before, or empty
-- ARGV[6]  limit
--
-- Returns  {'entries', last or empty, then entry, token, holder, fence, since_ms, remaining_ms of each}
--
-- Twin of rules/registry.py: list_entries.

--@include registry/keys.lua
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local index, prefix, after, limit = registry .. ':index:' .. ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6])
local order, tokens = {}, {}
if ARGV[3] == 'k' then
  local from = after ~= '' and '(' .. after or '[' .. prefix
  order = redis.call('ZRANGEBYLEX', index, from, '[' .. prefix .. '\255', 'LIMIT', 0, limit)
else
  local found = redis.call('HGETALL', index)
  for i = 1, #found, 2 do
    if string.sub(found[i], 1, #prefix) == prefix and found[i] > after then
      order[#order + 1], tokens[found[i]] = found[i], found[i + 1]
    end
  end
  table.sort(order)
end
local answer = { 'entries', '' }
for i, entry in ipairs(order) do
  if i > limit then break end
  if i == limit then answer[2] = entry end
  local fields, unreadable = fields_of(record_key(entry))
  local _, token, held, since, expires, offered, holder
  if fields then _, _, _, _, _, _, token, _, held, _, since, expires, offered, holder = unpack(fields, 1, 14) end
  if unreadable then
    -- It stays for people to see; the other entries follow.
  elseif token and expires > now and not offered and (tokens[entry] or token) == token then
    for _, value in ipairs({ entry, token, holder, string.format('%.0f', held), math.floor((now - since) / 1000),
      math.floor((expires - now) / 1000) }) do
      answer[#answer + 1] = value
    end
  elseif ARGV[3] == 'k' then
    redis.call('ZREM', index, entry)
  else
    redis.call('HDEL', index, entry)
  end
end
return answer
