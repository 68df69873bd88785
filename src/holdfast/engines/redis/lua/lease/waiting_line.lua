-- The queue of a name: who waits, who is next, and what has lapsed. For names that are contended.
--
-- KEYS[1]  record
-- ARGV     as in lease/record.lua
--
-- Returns  nothing; it gives the command the functions settle, offer, tomb and so on.
--
-- Same law as rules/lease.py: settle, offer. Nothing is written before `commit`; there, what frees memory comes first,
-- because such commands pass at maxmemory and open the door for the rest, and the wake-up comes last and may fail. The
-- queue is read as a whole only when a client has fallen or people want to see it: else a command costs the same
-- whether two wait or ten thousand.

local queue, seats, tombs, marks = base .. ':q', base .. ':w', base .. ':d:', base .. ':m'
local MARK_US, TOMB_US = 5000000, 60000000

-- Lua would print a fence as 1.7e+15 by itself.
local function int(number) return string.format('%.0f', number) end

local fence_before = holder and held
local queued_before = waiting > 0 or offered

local order                  -- the whole queue, if it was read; then `seat` knows every seat
local seat = {}              -- token -> { client, ttl_ms, since_us, owner, pops }
local left, gone = {}, {}    -- tokens to take out, in order and as a set
local joined = {}            -- tokens to put in: a late one, the caller's
local fallen = {}            -- clients whose mark lapsed
local grave                  -- a tomb to add
local marked = false
local unmarked               -- a client that waits without a mark: it gets one that has just lapsed
local pops = false           -- whether the offered waiter blocks on its bell
local reseated               -- a waiter that will be woken in another way from now on

local function each_thousand(list, call)
  for first = 1, #list, 1000 do
    call(unpack(list, first, math.min(first + 999, #list)))
  end
end

local function take_out(token)
  left[#left + 1], gone[token] = token, true
end

local function leave_queue(token)
  for i, other in ipairs(joined) do
    if other == token then return table.remove(joined, i) end
  end
  if waiting > 0 and not gone[token] and redis.call('ZSCORE', queue, token) then take_out(token) end
end

local function join_queue(token, place)
  joined[#joined + 1], seat[token] = token, place
end

-- How many wait, after what has been decided so far.
local function length() return waiting - #left + #joined end

local function read_queue()
  if order then return end
  order = {}
  if waiting == 0 then return end
  local tokens = redis.call('ZRANGE', queue, 0, -1)
  each_thousand(tokens, function(...)
    local part = { ... }
    local texts = redis.call('HMGET', seats, ...)
    for i, token in ipairs(part) do
      if texts[i] then
        seat[token] = { cmsgpack.unpack(texts[i]) }
        order[#order + 1] = token
      elseif not gone[token] then
        take_out(token)
      end
    end
  end)
end

local function seat_of(token)
  if not seat[token] then
    local text = redis.call('HGET', seats, token)
    if text then seat[token] = { cmsgpack.unpack(text) } end
  end
  return seat[token]
end

-- The first who waits, or nothing.
local function first()
  if not order then
    -- Whatever was taken out stood at the head, so the next one is not far behind it.
    local heads = redis.call('ZRANGE', queue, 0, #left)
    if #heads == 0 and waiting > 0 then waiting, kept = #left, 0 end  -- the queue was lost: nobody waits
    for _, token in ipairs(heads) do
      if not gone[token] then
        if seat_of(token) then return token end
        read_queue()  -- a key was lost: look at all of them
        break
      end
    end
  end
  for _, token in ipairs(order or {}) do
    if not gone[token] then return token end
  end
  return joined[1]
end

-- How many wait before this token; nothing if it does not wait.
local function place_of(token)
  for i, other in ipairs(joined) do
    if other == token then return waiting - #left + i - 1 end
  end
  if waiting == 0 or gone[token] then return end
  if not order then
    local place = redis.call('ZRANK', queue, token)
    return place and place - #left  -- what was taken out stood at the head
  end
  local place = 0
  for _, other in ipairs(order) do
    if other == token then return place end
    if not gone[other] then place = place + 1 end
  end
end

local function next_fence()
  fence = math.max(fence + 1, now)
  return fence
end

local function offer(token)
  local theirs = seat_of(token)
  leave_queue(token)
  holder, client, ttl, owner, pops = token, theirs[1], theirs[2], theirs[4], theirs[5]
  held, since, expires, offered = next_fence(), now, now + math.min(ttl * 1000, OFFER_US), true
end

local function free()
  holder, offered = nil, false
end

local function offer_first()
  local token = length() > 0 and first()
  if token then offer(token) end
end

-- Receive out the waiters of clients that have fallen silent. Only then is the whole queue looked at.
local function drop_fallen()
  for _, other in ipairs(redis.call('ZRANGEBYSCORE', marks, '-inf', int(now))) do
    if other ~= me then
      fallen[#fallen + 1] = other
      fallen[other] = true
    end
  end
  if #fallen == 0 then return end
  read_queue()
  for _, token in ipairs(order) do
    if fallen[seat[token][1]] then take_out(token) end
  end
end

local function settle()
  if queued_before then drop_fallen() end
  if holder and expires <= now then
    -- The mark itself is looked at: that of a client that fell before has already been taken away.
    local mark = offered and tonumber(redis.call('ZSCORE', marks, client) or 0)
    if offered and (client == me or mark > now) then
      if mark == 0 then unmarked = client end
      -- It may only not have heard. Whoever lives keeps a place in the queue: the last one.
      join_queue(holder, { client, ttl, now, owner, false })
    end
    free()
  end
  if not holder then offer_first() end
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

local function sit(token)
  redis.call('HSET', seats, token, cmsgpack.pack(unpack(seat[token], 1, 5)))
end

local function commit()
  local anew = #joined > 0 and waiting <= #left  -- the queue's keys are made anew
  local unknown = anew and waiting == 0
  waiting = length()
  local queued = waiting > 0 or offered
  each_thousand(left, function(...) redis.call('ZREM', queue, ...) redis.call('HDEL', seats, ...) end)
  each_thousand(fallen, function(...) redis.call('ZREM', marks, ...) end)
  if freeing and #left == 0 and #fallen == 0 then redis.call('DEL', base) end

  if anew then kept = 0 end
  -- Whatever stands in a queue of which the record knows nothing belongs to a record that was lost.
  if unknown and redis.call('ZCARD', queue) > 0 then redis.call('DEL', queue, seats) end
  for _, token in ipairs(joined) do
    ticket = ticket + 1
    redis.call('ZADD', queue, ticket, token)
    sit(token)
  end
  if reseated then sit(reseated) end
  if grave then redis.call('SET', grave.key, grave.text, 'PX', grave.lasts) end
  -- Marks are for those who wait: without any, the key would never end.
  if queued then
    local added = unmarked and redis.call('ZADD', marks, int(now), unmarked) or 0
    if marked then added = added + redis.call('ZADD', marks, int(now + MARK_US), me) end
    if added > 0 then kept = 0 end  -- the key may be new
  elseif queued_before then
    redis.call('DEL', marks)
  end
  --@include lease/write.lua

  if offered and held ~= fence_before then
    --@include lease/wake.lua
  end
end
