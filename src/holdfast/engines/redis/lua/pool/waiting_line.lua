-- The waiting line of a pool: the waiters in order, and the heartbeats of their clients.
--
-- KEYS, ARGV  those of pool/state.lua
--
-- Returns  nothing; it defines the functions waiter_of, join_line, leave_line, first_waiters, drop_silent and so on.
--
-- Twin of rules/pool_state.py: PoolWaitingLine.

--@const DOUBT_MS = rules.trust.DOUBT_MS
local doubtful = {}  -- clients that may be dead: other waiters come first

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

-- Return the ticket and the token of the first waiter of a line whose client is not in doubt; of the very first if there is
-- none. Remove a token without data: a key was lost, and the client resends the command.
local function first_of(line)
  local first, in_doubt
  local at = 0
  while true do
    first = redis.call('ZRANGE', line, at, at, 'WITHSCORES')
    local waiter = first[1] and waiter_of(first[1])
    if not first[1] then
      return in_doubt
    elseif not waiter then
      redis.call('ZREM', line, first[1])
    elseif not doubtful[waiter[1]] then
      return { tonumber(first[2]), first[1] }
    else
      in_doubt = in_doubt or { tonumber(first[2]), first[1] }
      at = at + 1
    end
  end
end

-- Return the first waiter of each line, in the order of their tickets; of a read-write lock, only the first of all.
local function first_waiters()
  local found = {}
  if kind == RWLOCK and waiting > 0 then
    local first = first_of(base .. ':line')
    if first then return { first } end
  end
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
  local found = redis.call('ZRANGEBYSCORE', base .. ':heartbeats', '-inf', int(now + DOUBT_MS * 1000), 'WITHSCORES')
  for i = 1, #found, 2 do
    local client = found[i]
    if client == caller then
      -- it is alive: it has just sent this command
    elseif tonumber(found[i + 1]) <= now then
      silent[client] = true
      redis.call('ZREM', base .. ':heartbeats', client)
    else
      doubtful[client] = true
    end
  end
  if not next(silent) or waiting == 0 then return end
  for _, token in ipairs(redis.call('ZRANGE', base .. ':line', 0, -1)) do
    local waiter = waiter_of(token)
    if waiter and silent[waiter[1]] then leave_line(token) end
  end
end

local function record_heartbeat(counts_ms) redis.call('ZADD', base .. ':heartbeats', int(now + counts_ms * 1000), caller) end
