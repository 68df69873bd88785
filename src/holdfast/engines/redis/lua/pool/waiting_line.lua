-- The waiting line of a pool: the waiters in order, and the heartbeats of their clients.
--
-- KEYS, ARGV  those of pool/state.lua
--
-- Returns  nothing; it defines the functions waiter_of, join_line, leave_line, first_waiters, drop_silent and so on.
--
-- Twin of rules/pool_state.py: PoolWaitingLine.

--@const HEARTBEAT_MS = rules.trust.HEARTBEAT_MS
local function waiter_of(token)
  local text = waiting > 0 and redis.call('HGET', base .. ':waiters', token)
  return text and { cmsgpack.unpack(text) }
end

local function store_waiter(token, waiter)
  redis.call('HSET', base .. ':waiters', token, cmsgpack.pack(unpack(waiter, 1, 8)))
end

local function join_line(token, waiter)
  local share = share_of(waiter[5], waiter[6])
  ticket = ticket + 1
  waiting = waiting + 1
  store_waiter(token, waiter)
  redis.call('ZADD', base .. ':line', ticket, token)
  redis.call('ZADD', base .. ':line:' .. share, ticket, token)
  redis.call('HINCRBY', base .. ':lines', share, 1)
end

local function leave_line(token)
  local waiter = waiter_of(token)
  if not waiter then return end
  local share = share_of(waiter[5], waiter[6])
  waiting = waiting - 1
  redis.call('HDEL', base .. ':waiters', token)
  redis.call('ZREM', base .. ':line', token)
  redis.call('ZREM', base .. ':line:' .. share, token)
  if redis.call('HINCRBY', base .. ':lines', share, -1) <= 0 then redis.call('HDEL', base .. ':lines', share) end
end

local function lines() return waiting > 0 and redis.call('HKEYS', base .. ':lines') or {} end

-- Return the ticket and the token of the first waiter of a line. Remove a token without data: a key was lost, and the client
-- resends the command.
local function first_of(line)
  local first
  repeat
    if first then redis.call('ZREM', line, first[1]) end
    first = redis.call('ZRANGE', line, 0, 0, 'WITHSCORES')
  until not first[1] or waiter_of(first[1])
  return first[1] and { tonumber(first[2]), first[1] }
end

-- Return the first waiter of each line, in the order of their tickets; of a read-write lock, only the first of all.
local function first_waiters()
  local found = {}
  for _, share in ipairs(lines()) do found[#found + 1] = first_of(base .. ':line:' .. share) or nil end
  table.sort(found, function(one, other) return one[1] < other[1] end)
  if waiting > 0 and #found == 0 then  -- the line was lost
    waiting = 0
    redis.call('DEL', base .. ':line', base .. ':lines', base .. ':waiters')
  end
  return kind == RWLOCK and { found[1] } or found
end

local function drop_silent()
  local silent = {}
  for _, client in ipairs(redis.call('ZRANGEBYSCORE', base .. ':heartbeats', '-inf', int(now))) do
    if client ~= caller then
      silent[client] = true
      redis.call('ZREM', base .. ':heartbeats', client)
    end
  end
  if not next(silent) or waiting == 0 then return end
  for _, token in ipairs(redis.call('ZRANGE', base .. ':line', 0, -1)) do
    local waiter = waiter_of(token)
    if waiter and silent[waiter[1]] then leave_line(token) end
  end
end

local function record_heartbeat() redis.call('ZADD', base .. ':heartbeats', int(now + HEARTBEAT_MS * 1000), caller) end
