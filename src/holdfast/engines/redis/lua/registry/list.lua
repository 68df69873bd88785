-- Who holds what on a index of a directory; what is held no more is taken off.
--
-- KEYS[1]  place   the directory's key
-- ARGV[1]  index   `k`, or any other: see registry/claim.lua
-- ARGV[2]  prefix
-- ARGV[3]  after   the entry behind which to go on, or empty
-- ARGV[4]  limit
--
-- Returns  {'listing', last or empty, then entry, token, owner, fence, since_ms, remaining_ms of each}
--
-- Same law as rules/registry.py: entry.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local index, prefix, after, limit = KEYS[1] .. ':s:' .. ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local order, tokens = {}, {}
if ARGV[1] == 'k' then
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
local answer = { 'listing', '' }
for i, entry in ipairs(order) do
  if i > limit then break end
  if i == limit then answer[2] = entry end
  local text = redis.call('GET', KEYS[1] .. ':e:' .. string.gsub(string.gsub(entry, '%%', '%%25'), ':', '%%3A'))
  local fence, _, _, _, _, _, token, _, held, _, since, expires, offered, owner
  if text then
    fence, _, _, _, _, _, token, _, held, _, since, expires, offered, owner = cmsgpack.unpack(text)
  end
  if token and expires > now and not offered and (tokens[entry] or token) == token then
    for _, fact in ipairs({ entry, token, owner, string.format('%.0f', held), math.floor((now - since) / 1000),
      math.floor((expires - now) / 1000) }) do
      answer[#answer + 1] = fact
    end
  elseif ARGV[1] == 'k' then
    redis.call('ZREM', index, entry)
  else
    redis.call('HDEL', index, entry)
  end
end
return answer
