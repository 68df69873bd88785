-- The state of a pool: its record and its items. Every script of a pool begins with this text.
--
-- KEYS[1]  the name's own key, as in lease/record.lua; all keys of the pool begin with it and share its slot. The pool's
--          record is at KEYS[1], a colon and the kind: fence, ticket, waiting, offers, tombstones_until, size, leaving,
--          permits, shares, ending, life. The other keys begin with that one:
--            :items         hash        name -> the fields that are numbered below
--            :free          sorted set  name by the fence of its last acquisition
--            :away          sorted set  name by the time at which its lease, offer or cooldown ends
--            :tokens        hash        token -> name, of each lent or offered item
--            :offers        hash        token -> client
--            :line          sorted set  waiting line: token by ticket; :line:<share> the same, of the waiters of a share
--            :lines         hash        share -> length of its line
--            :waiters       hash        token -> client, ttl_ms, since_us, cooldown_ms, tag, share_ppm, holder, pops
--            :heartbeats    sorted set  client by the end of its heartbeat
--            :shares        hash        share -> number of its items; :share:<share> the free ones of them, as in :free
--            :parts         hash        name -> the shares that the item belongs to
--            :ended:, :wakeup:          as in lease/record.lua
-- ARGV[1]  client     the caller: the channel of its wake-ups
-- ARGV[2]  memory_ms  how long a semaphore or read-write lock is remembered after its last use
-- ARGV[3]  kind       pool, semaphore or rwlock
--
-- Returns  nothing; it defines the functions load, put, free, pick and so on for the command.
--
-- Twin of rules/pool.py and rules/pool_state.py. The first write of a script decides whether the script succeeds at
-- maxmemory, so commands that free memory begin with `allow_at_maxmemory`; after the first write nothing fails. No command
-- reads all items, except `change`, and `collect_share` when a share is used for the first time.

--@const STORED_FENCE_MAX = rules.lease_record.STORED_FENCE_MAX
--@const FREE = rules.pool_state.FREE
--@const OFFERED = rules.pool_state.OFFERED
--@const LENT = rules.pool_state.LENT
--@const COOLING = rules.pool_state.COOLING
--@const RWLOCK = commands.pool.RWLOCK
--@const READ = commands.pool.READ
--@const WHOLE_PPM = commands.pool.WHOLE_PPM
--@const WRITER = rules.rwlock.WRITER
local base, caller, kind = KEYS[1] .. ':' .. ARGV[3], ARGV[1], ARGV[3]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local STATE, ORDER, BACK, COOLDOWN, USED, SINCE, FENCE, LAST, LEAVING, TOKEN, CLIENT, HOLDER, TTL, TAG, SHARE_PPM =
  1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15

local fence, ticket, waiting, offers, tombstones_until, size, leaving, permits, shares = 0, 0, 0, 0, 0, 0, 0, 0, 0
local ending = false  -- whether the keys of the pool expire
local life  -- the time at which this record was created: if the server loses it, the next record has another time
local packed = redis.call('GET', base)
if packed then
  fence, ticket, waiting, offers, tombstones_until, size, leaving, permits, shares, ending, life =
    cmsgpack.unpack(packed)
  -- As in lease/record.lua.
  if not (fence >= 0 and fence <= STORED_FENCE_MAX and ticket >= 0 and waiting >= 0 and offers >= 0
    and tombstones_until >= 0 and size >= 0 and leaving >= 0 and permits >= 0 and shares >= 0) then
    return { err = 'CORRUPT the record has an impossible value' }
  end
end
life = life or now
local contended_before = waiting > 0 or offers > 0
local wakeups = {}  -- { client, token, pops } of each waiter to wake
local was = {}      -- name -> { state, token } of each item that was read, as it is stored now

local function int(number) return string.format('%.0f', number) end

-- Delete a key that never exists: a script whose first write frees memory succeeds at maxmemory.
local function allow_at_maxmemory() redis.call('DEL', base .. ':-') end

local function share_of(tag, ppm) return ppm >= WHOLE_PPM and '' or int(ppm) .. ':' .. tag end

local function wake(client, token, pops) wakeups[#wakeups + 1] = { client, token, pops } end

local function decode(text)
  local item = { cmsgpack.unpack(text) }
  if not (item[STATE] >= '' and item[FENCE] <= STORED_FENCE_MAX and item[TOKEN] >= '' and item[CLIENT] >= ''
    and item[HOLDER] >= '' and item[BACK] >= 0 and item[COOLDOWN] >= 0 and item[TTL] >= 0) then
    error('an item has an impossible value')
  end
  return item
end

-- Return the item. If it cannot be read, return nil and the error for a caller that named it; the item is then not free, and
-- stays as it is until a user removes it from the pool.
local function load(name)
  local text = redis.call('HGET', base .. ':items', name)
  if not text then return end
  local readable, item = pcall(decode, text)
  if not readable then return nil, { err = 'CORRUPT the field ' .. name .. ' of the key ' .. base .. ':items' } end
  was[name] = { item[STATE], item[TOKEN] }
  return item
end

local function taken(item) return item[STATE] == LENT or item[STATE] == OFFERED end

-- Add the item to the free items of its shares, or remove it from them.
local function update_shares(name, order)
  if shares == 0 then return end
  local parts = redis.call('HGET', base .. ':parts', name)
  if not parts then return end
  for _, share in ipairs(cmsgpack.unpack(parts)) do
    if order then
      redis.call('ZADD', base .. ':share:' .. share, int(order), name)
    else
      redis.call('ZREM', base .. ':share:' .. share, name)
    end
  end
end

-- Delete the item from every index; the item itself stays.
local function unindex(name)
  local before = was[name]
  if not before then return end
  local state, token = before[1], before[2]
  if state == FREE then
    redis.call('ZREM', base .. ':free', name)
    update_shares(name, nil)
  else
    redis.call('ZREM', base .. ':away', name)
  end
  if token ~= '' then redis.call('HDEL', base .. ':tokens', token) end
  if state == OFFERED then
    redis.call('HDEL', base .. ':offers', token)
    offers = offers - 1
  end
end

local function put(name, item)
  local state, token = item[STATE], item[TOKEN]
  local before = was[name]
  if not (before and before[1] == LENT and state == LENT and before[2] == token) then
    unindex(name)
    if token ~= '' then redis.call('HSET', base .. ':tokens', token, name) end
    if state == OFFERED then
      redis.call('HSET', base .. ':offers', token, item[CLIENT])
      offers = offers + 1
    end
  end
  if state == FREE then
    redis.call('ZADD', base .. ':free', int(item[ORDER]), name)
    update_shares(name, item[ORDER])
  else
    redis.call('ZADD', base .. ':away', int(item[BACK]), name)
  end
  redis.call('HSET', base .. ':items', name, cmsgpack.pack(unpack(item, 1, 15)))
  was[name] = { state, token }
end

local function drop(name)
  unindex(name)
  redis.call('HDEL', base .. ':items', name)
  was[name] = nil
end

local function new_item(order) return { FREE, order, 0, 0, 0, 0, 0, '', false, '', '', '', 0, '', WHOLE_PPM } end

local function clear_lease(item)
  item[TOKEN], item[CLIENT], item[HOLDER], item[TTL], item[TAG], item[SHARE_PPM] = '', '', '', 0, '', WHOLE_PPM
end

local function free(name, item)
  if item[LEAVING] then
    leaving = leaving - 1
    return drop(name)
  end
  clear_lease(item)
  item[STATE], item[BACK], item[COOLDOWN] = FREE, 0, 0
  put(name, item)
end

local function taken_by(token)
  local name = redis.call('HGET', base .. ':tokens', token)
  local item = name and load(name)
  if item and item[TOKEN] == token then return name, item end
end

local function next_fence()
  fence = math.max(fence + 1, now)
  return fence
end

--@include pool/shares.lua
-- Return the item that this token would get: a free item of its share; of a read-write lock, a new item for the reader or
-- the writer. The function stores nothing, but removes an item that cannot be read from the free ones.
local function pick(token, tag, ppm)
  if kind ~= RWLOCK then
    local name = next_free(tag, ppm)
    local item = name and load(name)
    while name and not item do
      redis.call('ZREM', base .. ':free', name)
      update_shares(name, nil)
      local other = next_free(tag, ppm)
      name = other ~= name and other
      item = name and load(name)
    end
    if item then return name, item end
    return
  end
  if tag == READ then
    if redis.call('HEXISTS', base .. ':items', WRITER) == 1 then return end
  elseif redis.call('HLEN', base .. ':items') > 0 then
    return
  end
  local item = new_item(0)
  item[LEAVING] = true
  leaving = leaving + 1
  return tag == READ and 'reader ' .. token or WRITER, item
end
