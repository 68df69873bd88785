-- Write the pool's record, set the expiry of its keys, and wake the waiters that got an offer.
--
-- KEYS, ARGV  those of pool/state.lua
--
-- Returns  nothing; it defines the function commit.

--@const POOL = commands.pool.POOL
local KEYS_OF_POOL = { ':items', ':free', ':away', ':tokens', ':offers', ':line', ':lines', ':waiters', ':heartbeats' }

-- Write everything, and wake the waiters; except the caller's token, if it is given: its caller gets the answer.
local function commit(caller_token)
  if contended_before and waiting == 0 and offers == 0 then redis.call('DEL', base .. ':heartbeats') end
  local expiring_before = ending
  ending = kind ~= POOL or size == 0  -- only a pool with items stays until a user removes them
  local record =
    cmsgpack.pack(fence, ticket, waiting, offers, tombstones_until, size, leaving, permits, shares, ending, life)
  if ending then
    local last = redis.call('ZRANGE', base .. ':away', -1, -1, 'WITHSCORES')[2] or 0
    local keep_ms = math.ceil((math.max(now, tombstones_until, tonumber(last)) - now) / 1000) + ARGV[2]
    redis.call('SET', base, record, 'PX', keep_ms)
    for _, key in ipairs(KEYS_OF_POOL) do redis.call('PEXPIRE', base .. key, keep_ms) end
    for _, share in ipairs(lines()) do redis.call('PEXPIRE', base .. ':line:' .. share, keep_ms) end
  else
    redis.call('SET', base, record)
    if expiring_before then
      for _, key in ipairs(KEYS_OF_POOL) do redis.call('PERSIST', base .. key) end
    end
  end
  for _, wakeup in ipairs(wakeups) do
    local client, token, pops = unpack(wakeup)
    if token == caller_token then
      -- the answer tells its caller
    elseif pops then
      redis.pcall('RPUSH', base .. ':wakeup:' .. token, '1')
      redis.pcall('PEXPIRE', base .. ':wakeup:' .. token, OFFER_MAX_US / 1000)
    else
      redis.pcall('PUBLISH', client, token)
    end
  end
end
