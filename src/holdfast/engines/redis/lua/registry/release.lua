-- Release an entry of a registry, remove it from its indexes and delete its mailbox, if the caller's token holds it.
--
-- KEYS[1]   record of the entry
-- ARGV[3]   token
-- ARGV[4]   options       as lease/release.lua
-- ARGV[5]   entry
-- ARGV[6]   successor     the label that the entry is reserved for, or empty
-- ARGV[7]   successor_ms
-- ARGV[8…]  indexes
--
-- Returns  as lease/release.lua
--
-- Twin of rules/registry.py: release_entry.

--@include lease/record.lua
--@include registry/keys.lua
if holder_token == ARGV[3] and expires > now and not offered then
  redis.call('DEL', registry .. ':mailbox:' .. ARGV[3])  -- first, because it frees memory: the rest succeeds at maxmemory
  for i = 8, #ARGV do
    local index = registry .. ':index:' .. ARGV[i]
    if ARGV[i] == 'k' then redis.call('ZREM', index, ARGV[5]) else redis.call('HDEL', index, ARGV[5]) end
  end
  if ARGV[6] ~= '' then
    local successor = string.format('%.0f ', now + ARGV[7] * 1000) .. ARGV[6]
    redis.call('SET', registry .. ':successor:' .. ARGV[5], successor, 'PX', ARGV[7])
  end
end
--@include lease/release.lua
