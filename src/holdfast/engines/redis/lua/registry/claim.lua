-- Grant or refuse an entry of a directory, and put it on its indexes; in one step.
--
-- KEYS[1]  record  of the entry, :e:ENTRY behind the directory's own key; and beside it, behind the same key, :s:SHELF:
--                  `k`, a sorted set of entries in order; any other, a hash: entry -> token
-- ARGV[1…6]        as lease/acquire.lua
-- ARGV[7]  place   the directory's key
-- ARGV[8]  entry
-- ARGV[9]  limit   how many others may stand on the group's index, or -1
-- ARGV[10] group   that index, or empty
-- ARGV[11] label  whose it may be, if it is kept for somebody: :h:ENTRY, a string that expires by itself
-- ARGV[12…] indexes
--
-- Returns  {'full', others} | {'kept', successor, remaining_ms} | as lease/acquire.lua
--
-- Same law as rules/registry.py: entry.

--@include lease/record.lua
local INDEX_MS = 2678400000
local place, entry, limit = ARGV[7], ARGV[8], tonumber(ARGV[9])
local successor = redis.call('GET', place .. ':h:' .. entry)
if successor then
  local until_us, whose = string.match(successor, '^(%d+) (.*)$')
  local left_ms = math.floor((until_us - now) / 1000)
  if whose ~= ARGV[11] and left_ms > 0 then return { 'kept', whose, left_ms } end
end
if limit >= 0 then
  local index, others = place .. ':s:' .. ARGV[10], 0
  local found = redis.call('HGETALL', index)
  for i = 1, #found, 2 do
    local text = redis.call('GET', place .. ':e:' .. string.gsub(string.gsub(found[i], '%%', '%%25'), ':', '%%3A'))
    local seat = text and { cmsgpack.unpack(text) } or {}
    if seat[7] ~= found[i + 1] or seat[12] <= now or seat[13] then
      redis.call('HDEL', index, found[i])
    elseif found[i] ~= entry then
      others = others + 1
    end
  end
  if others >= limit then return { 'full', others } end
end
local ended = ARGV[3] == last or (buried > now and redis.call('GET', base .. ':d:' .. ARGV[3]))
if not ended and (not holder or expires <= now or holder == ARGV[3]) then
  if successor then redis.call('DEL', place .. ':h:' .. entry) end  -- whoever it was kept for has come, or did not in time
  for i = 12, #ARGV do
    local index = place .. ':s:' .. ARGV[i]
    if ARGV[i] == 'k' then redis.call('ZADD', index, 0, entry) else redis.call('HSET', index, entry, ARGV[3]) end
    redis.call('PEXPIRE', index, INDEX_MS)
  end
end
--@include lease/acquire.lua
