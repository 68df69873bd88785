-- Bring the pool to the present: expired items come back, and free items are offered to the waiters.
--
-- KEYS, ARGV  those of pool/state.lua
--
-- Returns  nothing; it defines the functions offer_free_items and advance.
--
-- Twin of rules/pool.py: advance, offer_free_items.

--@const OFFER_MAX_US = rules.lease.OFFER_MAX_US
--@const DUE_AT_ONCE = rules.pool.DUE_AT_ONCE
local function offer_free_items()
  while waiting > 0 do
    local token, waiter, name, item
    for _, first_waiter in ipairs(first_waiters()) do
      token = first_waiter[2]
      waiter = waiter_of(token)
      name, item = pick(token, waiter[5], waiter[6])
      if name then break end
    end
    if not name then return end
    leave_line(token)
    item[STATE], item[BACK], item[COOLDOWN] = OFFERED, now + math.min(waiter[2] * 1000, OFFER_MAX_US), waiter[4]
    item[FENCE], item[TOKEN], item[CLIENT], item[HOLDER] = next_fence(), token, waiter[1], waiter[7]
    item[TTL], item[TAG], item[SHARE_PPM] = waiter[2], waiter[5], waiter[6]
    put(name, item)
    wake(waiter[1], token, waiter[8])
  end
end

local function expire(name)
  local item = load(name)
  if not item then return redis.call('ZREM', base .. ':away', name) end  -- it cannot be read, and never becomes free
  local ends = item[BACK] + item[COOLDOWN] * 1000
  if item[STATE] == LENT and ends > now then
    clear_lease(item)
    item[STATE], item[BACK] = COOLING, ends
    return put(name, item)
  end
  if item[STATE] == OFFERED then
    local client = item[CLIENT]
    local heartbeat_until = tonumber(redis.call('ZSCORE', base .. ':heartbeats', client) or 0)
    if (client == caller or heartbeat_until > now) and (size > 0 or kind == RWLOCK) then
      if heartbeat_until == 0 then redis.call('ZADD', base .. ':heartbeats', int(now), client) end
      if client ~= caller then
        doubtful[client] = true
        redis.call('ZADD', base .. ':heartbeats', int(math.min(heartbeat_until, now + DOUBT_MS * 1000)), client)
      end
      join_line(item[TOKEN], { client, item[TTL], now, item[COOLDOWN], item[TAG], item[SHARE_PPM], item[HOLDER], false })
    end
  end
  free(name, item)
end

local function advance()
  if contended_before then drop_silent() end
  local due = redis.call('ZRANGEBYSCORE', base .. ':away', '-inf', int(now), 'LIMIT', 0, DUE_AT_ONCE)
  for _, name in ipairs(due) do expire(name) end
  offer_free_items()
end
