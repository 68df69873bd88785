-- The queue of a name: who waits, who is next, and what has lapsed. For all but the quiet case.
--
-- KEYS[1]  record
-- ARGV     as in record.lua
--
-- Returns  nothing; it gives the command the functions settle, offer, tomb and so on.
--
-- Same law as rules/lease.py: settle, offer. Nothing is written before `commit`; there, what frees memory comes first,
-- because such commands pass at maxmemory and open the door for the rest, and the wake-up comes last and may fail.

local mark_us = ARGV[3] * 1000
local queue, seats, tombs, marks = base .. ':q', base .. ':w', base .. ':d:', base .. ':m'
local OFFER_US, TOMB_US = 1000000, 60000000

-- Lua would print a fence as 1.7e+15 by itself.
local function int(number) return string.format('%.0f', number) end

local fence_before = holder and holder.fence
local queued_before = waiting > 0 or (holder and holder.offered)

local order, seat_of = nil, {}     -- the queue, read only if somebody waits
local left, fallen = {}, {}        -- tokens to take out of it; clients whose mark lapsed
local joined, grave = {}, nil      -- tokens to put in, in order; a tomb to add
local marked = false
local unmarked = nil               -- a client that waits without a mark: it gets one that has just lapsed

local function read_queue()
  if order then return end
  order = {}
  if waiting == 0 then return end
  local tokens = redis.call('ZRANGE', queue, 0, -1)
  for first = 1, #tokens, 1000 do
    local part = {}
    for i = first, math.min(first + 999, #tokens) do part[#part + 1] = tokens[i] end
    local texts = redis.call('HMGET', seats, unpack(part))
    for i, token in ipairs(part) do
      if texts[i] then
        local client, ttl, since, owner = cmsgpack.unpack(texts[i])
        order[#order + 1] = token
        seat_of[token] = { client = client, ttl = ttl, since = since, owner = owner }
      end
    end
  end
end

local function join_queue(token, seat)
  read_queue()
  order[#order + 1] = token
  seat_of[token] = seat
  joined[#joined + 1] = token
end

local function leave_queue(token)
  read_queue()
  for i, other in ipairs(order) do
    if other == token then
      table.remove(order, i)
      if joined[#joined] == token then joined[#joined] = nil else left[#left + 1] = token end
      return
    end
  end
end

local function place_of(token)
  read_queue()
  for i, other in ipairs(order) do
    if other == token then return i - 1 end
  end
end

local function next_fence()
  fence = math.max(fence + 1, now)
  return fence
end

local function offer(token)
  local seat = seat_of[token]
  leave_queue(token)
  holder = { token = token, client = seat.client, owner = seat.owner, fence = next_fence(), ttl = seat.ttl,
    since = now, expires = now + math.min(seat.ttl * 1000, OFFER_US), offered = true }
end

local function settle()
  if waiting > 0 or (holder and holder.offered) then
    for _, client in ipairs(redis.call('ZRANGEBYSCORE', marks, '-inf', int(now))) do
      if client ~= me then
        fallen[#fallen + 1] = client
        fallen[client] = true
      end
    end
    if #fallen > 0 then
      read_queue()
      local standing = {}
      for _, token in ipairs(order) do
        local list = fallen[seat_of[token].client] and left or standing
        list[#list + 1] = token
      end
      order = standing
    end
  end
  if holder and holder.expires <= now then
    local late = holder
    holder = nil
    -- The mark itself is looked at: that of a client that fell before has already been taken away.
    local mark = late.offered and tonumber(redis.call('ZSCORE', marks, late.client) or 0)
    if late.offered and (late.client == me or mark > now) then
      if mark == 0 then unmarked = late.client end
      -- It may only not have heard. Whoever lives keeps a place in the queue: the last one.
      join_queue(late.token, { client = late.client, ttl = late.ttl, since = now, owner = late.owner })
    end
  end
  if not holder and (waiting > 0 or #joined > 0) then
    read_queue()
    if order[1] then offer(order[1]) end
  end
end

local function tomb(token)
  if buried <= now then return end
  local text = redis.call('GET', tombs .. token)
  if not text then return end
  local why, detail = string.match(text, '^(.-)\n(.*)$')
  return { why = why, detail = detail }
end

local function entomb(token, lasts, why, detail)
  grave = { key = tombs .. token, text = why .. '\n' .. detail, lasts = int(lasts / 1000) }
  buried = math.max(buried, now + lasts)
  freeing = true
end

local function not_held(token)
  local ended = tomb(token)
  return ended and { 'not held', ended.why, ended.detail } or { 'not held', 'expired', '' }
end

local function commit()
  local changed_queue = #left > 0 or #joined > 0 or #fallen > 0
  for first = 1, #left, 1000 do
    local part = {}
    for i = first, math.min(first + 999, #left) do part[#part + 1] = left[i] end
    redis.call('ZREM', queue, unpack(part))
    redis.call('HDEL', seats, unpack(part))
  end
  for _, client in ipairs(fallen) do redis.call('ZREM', marks, client) end
  if freeing then redis.call('DEL', base) end

  for _, token in ipairs(joined) do
    local seat = seat_of[token]
    ticket = ticket + 1
    redis.call('ZADD', queue, ticket, token)
    redis.call('HSET', seats, token, cmsgpack.pack(seat.client, seat.ttl, seat.since, seat.owner))
  end
  if grave then redis.call('SET', grave.key, grave.text, 'PX', grave.lasts) end
  if changed_queue then waiting = redis.call('ZCARD', queue) end
  local queued = waiting > 0 or (holder and holder.offered)
  if queued_before and not queued then redis.call('DEL', marks) end
  -- Marks are for those who wait: without any, the key would never end.
  if unmarked and queued then redis.call('ZADD', marks, int(now), unmarked) end
  if marked and queued then redis.call('ZADD', marks, int(now + mark_us), me) end
  --@include write.lua
  if queued then
    for _, key in ipairs({ queue, seats, marks }) do redis.call('PEXPIRE', key, keep_ms) end
  end

  if holder and holder.offered and holder.fence ~= fence_before then
    redis.pcall('PUBLISH', ARGV[4] .. holder.client, holder.token)
  end
end
