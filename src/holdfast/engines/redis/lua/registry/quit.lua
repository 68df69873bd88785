-- Release an entry of a directory, take it off its indexes and throw its messages away, if it was the caller's to give.
--
-- KEYS[1]  record
-- ARGV[3]  token
-- ARGV[4]  how      as lease/release.lua
-- ARGV[5]  place    the directory's key
-- ARGV[6]  entry
-- ARGV[7]  successor     for whom it is kept, or empty
-- ARGV[8]  successor_ms
-- ARGV[9…] indexes
--
-- Returns  as lease/release.lua
--
-- Same law as rules/registry.py: entry.

--@include lease/record.lua
if holder == ARGV[3] and expires > now and not offered then
  redis.call('DEL', ARGV[5] .. ':p:' .. ARGV[3])  -- first: at maxmemory the first write must be one that frees
  for i = 9, #ARGV do
    local index = ARGV[5] .. ':s:' .. ARGV[i]
    if ARGV[i] == 'k' then redis.call('ZREM', index, ARGV[6]) else redis.call('HDEL', index, ARGV[6]) end
  end
  if ARGV[7] ~= '' then
    redis.call('SET', ARGV[5] .. ':h:' .. ARGV[6], string.format('%.0f ', now + ARGV[8] * 1000) .. ARGV[7], 'PX', ARGV[8])
  end
end
--@include lease/release.lua
