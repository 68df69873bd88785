-- Grant or refuse an entry of a registry, and add it to its indexes; in one step.
--
-- KEYS[1]   record of the entry
-- ARGV[1…6] as lease/acquire.lua
-- ARGV[7]   entry
-- ARGV[8]   limit      how many other entries the group's index may have, or -1
-- ARGV[9]   group      that index, or empty
-- ARGV[10]  label      the label of the claimant: an entry that is reserved for a successor is granted to no other label
-- ARGV[11…] indexes
--
-- Returns  {'at capacity', others} | {'handed off', successor, remaining_ms} | as lease/acquire.lua
--
-- Twin of rules/registry.py: claim_entry.

--@include lease/record.lua
--@include registry/keys.lua
--@const INDEX_MS = rules.registry.INDEX_MS
local entry, limit = ARGV[7], tonumber(ARGV[8])
local successor = redis.call('GET', registry .. ':successor:' .. entry)
if successor then
  local until_us, label = string.match(successor, '^(%d+) (.*)$')
  local left_ms = math.floor((until_us - now) / 1000)
  if label ~= ARGV[10] and left_ms > 0 then return { 'handed off', label, left_ms } end
end
if limit >= 0 then
  local index, others = registry .. ':index:' .. ARGV[9], 0
  local found = redis.call('HGETALL', index)
  for i = 1, #found, 2 do
    local fields, unreadable = fields_of(record_key(found[i]))
    local record = fields or {}
    if unreadable then
      -- Its holder cannot renew it: it does not count, and stays for people to see.
    elseif record[7] ~= found[i + 1] or record[12] <= now or record[13] then
      redis.call('HDEL', index, found[i])  -- the token no longer holds that entry
    elseif found[i] ~= entry then
      others = others + 1
    end
  end
  if others >= limit then return { 'at capacity', others } end
end
local ended = ARGV[3] == last or (tombstones_until > now and redis.call('GET', base .. ':ended:' .. ARGV[3]))
if not ended and (not holder_token or expires <= now or holder_token == ARGV[3]) then
  -- The successor claims the entry now, or has not claimed it in time.
  if successor then redis.call('DEL', registry .. ':successor:' .. entry) end
  for i = 11, #ARGV do
    local index = registry .. ':index:' .. ARGV[i]
    if ARGV[i] == 'k' then redis.call('ZADD', index, 0, entry) else redis.call('HSET', index, entry, ARGV[3]) end
    redis.call('PEXPIRE', index, INDEX_MS)
  end
end
--@include lease/acquire.lua
