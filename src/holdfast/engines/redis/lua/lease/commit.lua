-- Write the record, the waiting line and the tombstone, and wake the waiter that has just got the offer.
--
-- KEYS[1]  record
-- ARGV     as in lease/record.lua
--
-- Returns  nothing; it defines the function commit for the command.
--
-- Commands that free memory come first, because they succeed at maxmemory and after them the others do too; the wake-up
-- comes last, because it may fail.

local function store_waiter(token)
  redis.call('HSET', waiters_key, token, cmsgpack.pack(unpack(waiter[token], 1, 5)))
end

local function commit()
  local new_line = #joined > 0 and waiting <= #removed  -- the keys of the line are new
  local was_empty = new_line and waiting == 0
  waiting = length()
  local contended = waiting > 0 or offered
  each_thousand(removed, function(...) redis.call('ZREM', line_key, ...) redis.call('HDEL', waiters_key, ...) end)
  each_thousand(silent, function(...) redis.call('ZREM', heartbeats_key, ...) end)
  if freeing and #removed == 0 and #silent == 0 then redis.call('DEL', base) end

  if new_line then line_until = 0 end
  -- Waiters that the record does not count belong to an earlier record, which was lost.
  if was_empty and redis.call('ZCARD', line_key) > 0 then redis.call('DEL', line_key, waiters_key) end
  for _, token in ipairs(joined) do
    ticket = ticket + 1
    redis.call('ZADD', line_key, ticket, token)
    store_waiter(token)
  end
  if changed then store_waiter(changed) end
  if tombstone then redis.call('SET', tombstone.key, tombstone.text, 'PX', tombstone.lasts) end
  -- Without waiters, delete the heartbeats: lease/write.lua sets the expiry of their key only while there are waiters.
  if contended then
    if missed then redis.call('ZADD', heartbeats_key, int(missed[2]), missed[1]) end
    local added = without_heartbeat and redis.call('ZADD', heartbeats_key, int(now), without_heartbeat) or 0
    if heartbeat then added = added + redis.call('ZADD', heartbeats_key, int(now + heartbeat * 1000), caller) end
    if added > 0 then line_until = 0 end  -- the key may be new
  elseif contended_before then
    redis.call('DEL', heartbeats_key)
  end
  --@inline lease/write.lua

  if offered and held ~= fence_before then
    --@inline lease/wake.lua
  end
end
