-- A pool: its items, who waits for one, and what has come back by itself. Every script of a pool begins with this text.
--
-- KEYS[1]  the name's own key, as in lease/record.lua; all keys of the pool are made from it and share its slot. With the
--          kind of ARGV[3] behind it, it is the pool's record: fence, ticket, waiting, offers, buried, size, leaving,
--          permits, shares, ending, life. Then:
--            :i  items    hash        name -> see the list of fields below
--            :f  free     sorted set  name by the fence of its last acquisition
--            :b  away     sorted set  name by the time at which it comes back by itself
--            :t  tokens   hash        token -> name, of what is lent or offered
--            :o  offered  hash        token -> client
--            :q  queue    sorted set  token by ticket; :q:<share> the same, of those who may use a share
--            :h  lines    hash        share -> how many wait in that line
--            :w  seats    hash        token -> client, ttl_ms, since_us, cooldown_ms, tag, ppm, owner, pops
--            :m  marks    sorted set  client by the end of its mark
--            :c  shares   hash        share -> how many items it has; :c:<share> the free ones of them, as in :f
--            :x  parts    hash        name -> the shares that it is part of
--            :d: tombs, :k: bells     as in lease/record.lua
-- ARGV[1]  client     who asks: the channel on which it hears its wake-ups
-- ARGV[2]  memory_ms  how long what nobody has set up is remembered after its last use
-- ARGV[3]  kind       pool, semaphore or rwlock
--
-- Returns  nothing; it gives the command the functions settle, lend, rest, commit and so on.
--
-- Same law as rules/pool.py. The first write of a script decides whether it passes at maxmemory, so commands that free
-- begin with `make_way`; after the first one nothing fails. Nothing is looked through that grows with the pool, except
-- by `change`, and by `gather` when a share is used for the first time.

local base, me, kind = KEYS[1] .. ':' .. ARGV[3], ARGV[1], ARGV[3]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local MARK_US, OFFER_US, TOMB_US, WHOLE, SHARES_MAX, DUE_AT_ONCE = 5000000, 1000000, 60000000, 1000000, 256, 1000
local STATE, ORDER, BACK, REST, USED, SINCE, FENCE, LAST, LEAVING, TOKEN, CLIENT, OWNER, TTL, TAG, PPM =
  1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15

local fence, ticket, waiting, offers, buried, size, leaving, permits, shares, ending = 0, 0, 0, 0, 0, 0, 0, 0, 0, false
local life  -- when this record began: a server that has lost it begins another one
local packed = redis.call('GET', base)
if packed then
  fence, ticket, waiting, offers, buried, size, leaving, permits, shares, ending, life = cmsgpack.unpack(packed)
end
life = life or now
local queued_before = waiting > 0 or offers > 0
local calls = {}   -- whom to ring: { client, token, pops }
local was = {}     -- name -> { state, token } of what was read, as the server has it

local function int(number) return string.format('%.0f', number) end

local function make_way() redis.call('DEL', base .. ':-') end

local function share_of(tag, ppm) return ppm >= WHOLE and '' or int(ppm) .. ':' .. tag end

local function ring(client, token, pops) calls[#calls + 1] = { client, token, pops } end

-- Items.

local function load(name)
  local text = redis.call('HGET', base .. ':i', name)
  if not text then return end
  local item = { cmsgpack.unpack(text) }
  was[name] = { item[STATE], item[TOKEN] }
  return item
end

local function taken(item) return item[STATE] == 'lent' or item[STATE] == 'offered' end

-- Tell the shares that the item is part of: it is free, or it is not.
local function regrouped(name, order)
  if shares == 0 then return end
  local parts = redis.call('HGET', base .. ':x', name)
  if not parts then return end
  for _, share in ipairs(cmsgpack.unpack(parts)) do
    if order then
      redis.call('ZADD', base .. ':c:' .. share, int(order), name)
    else
      redis.call('ZREM', base .. ':c:' .. share, name)
    end
  end
end

-- Nothing but the item itself is known of it any more.
local function forget(name)
  local before = was[name]
  if not before then return end
  local state, token = before[1], before[2]
  if state == 'free' then
    redis.call('ZREM', base .. ':f', name)
    regrouped(name, nil)
  else
    redis.call('ZREM', base .. ':b', name)
  end
  if token ~= '' then redis.call('HDEL', base .. ':t', token) end
  if state == 'offered' then
    redis.call('HDEL', base .. ':o', token)
    offers = offers - 1
  end
end

local function put(name, item)
  local state, token = item[STATE], item[TOKEN]
  local before = was[name]
  if not (before and before[1] == 'lent' and state == 'lent' and before[2] == token) then
    forget(name)
    if token ~= '' then redis.call('HSET', base .. ':t', token, name) end
    if state == 'offered' then
      redis.call('HSET', base .. ':o', token, item[CLIENT])
      offers = offers + 1
    end
  end
  if state == 'free' then
    redis.call('ZADD', base .. ':f', int(item[ORDER]), name)
    regrouped(name, item[ORDER])
  else
    redis.call('ZADD', base .. ':b', int(item[BACK]), name)
  end
  redis.call('HSET', base .. ':i', name, cmsgpack.pack(unpack(item, 1, 15)))
  was[name] = { state, token }
end

local function drop(name)
  forget(name)
  redis.call('HDEL', base .. ':i', name)
  was[name] = nil
end

local function new_item(order) return { 'free', order, 0, 0, 0, 0, 0, '', false, '', '', '', 0, '', WHOLE } end

local function at_rest(item)
  item[TOKEN], item[CLIENT], item[OWNER], item[TTL], item[TAG], item[PPM] = '', '', '', 0, '', WHOLE
end

local function free(name, item)
  if item[LEAVING] then
    leaving = leaving - 1
    return drop(name)
  end
  at_rest(item)
  item[STATE], item[BACK], item[REST] = 'free', 0, 0
  put(name, item)
end

local function taken_by(token)
  local name = redis.call('HGET', base .. ':t', token)
  if name then return name, load(name) end
end

local function next_fence()
  fence = math.max(fence + 1, now)
  return fence
end

--@include pool/shares.lua
-- What this token would get: a free item of its share, or the place of a reader or writer. It has to be put.
local function pick(token, tag, ppm)
  if kind ~= 'rwlock' then
    local name = freest(tag, ppm)
    if name then return name, load(name) end
    return
  end
  if tag == 'read' then
    if redis.call('HEXISTS', base .. ':i', 'writer') == 1 then return end
  elseif redis.call('HLEN', base .. ':i') > 0 then
    return
  end
  local item = new_item(0)
  item[LEAVING] = true
  leaving = leaving + 1
  return tag == 'read' and 'reader ' .. token or 'writer', item
end

-- The queue.

local function seat_of(token)
  local text = waiting > 0 and redis.call('HGET', base .. ':w', token)
  return text and { cmsgpack.unpack(text) }
end

local function sit(token, seat) redis.call('HSET', base .. ':w', token, cmsgpack.pack(unpack(seat, 1, 8))) end

local function join_queue(token, seat)
  local share = share_of(seat[5], seat[6])
  ticket = ticket + 1
  waiting = waiting + 1
  sit(token, seat)
  redis.call('ZADD', base .. ':q', ticket, token)
  redis.call('ZADD', base .. ':q:' .. share, ticket, token)
  redis.call('HINCRBY', base .. ':h', share, 1)
end

local function leave_queue(token)
  local seat = seat_of(token)
  if not seat then return end
  local share = share_of(seat[5], seat[6])
  waiting = waiting - 1
  redis.call('HDEL', base .. ':w', token)
  redis.call('ZREM', base .. ':q', token)
  redis.call('ZREM', base .. ':q:' .. share, token)
  if redis.call('HINCRBY', base .. ':h', share, -1) <= 0 then redis.call('HDEL', base .. ':h', share) end
end

local function lines() return waiting > 0 and redis.call('HKEYS', base .. ':h') or {} end

-- The first of a line. Whoever has no seat any more is taken out: a key was lost, and it asks again.
local function first_of(line)
  local first
  repeat
    if first then redis.call('ZREM', line, first[1]) end
    first = redis.call('ZRANGE', line, 0, 0, 'WITHSCORES')
  until not first[1] or seat_of(first[1])
  return first[1] and { tonumber(first[2]), first[1] }
end

-- The first of each line, whoever came first before the others; of a read-write lock, the first of all.
local function heads()
  local found = {}
  for _, share in ipairs(lines()) do found[#found + 1] = first_of(base .. ':q:' .. share) or nil end
  table.sort(found, function(one, other) return one[1] < other[1] end)
  if waiting > 0 and #found == 0 then  -- the queue was lost: nobody waits
    waiting = 0
    redis.call('DEL', base .. ':q', base .. ':h', base .. ':w')
  end
  return kind == 'rwlock' and { found[1] } or found
end

local function drop_fallen()
  local fallen = {}
  for _, client in ipairs(redis.call('ZRANGEBYSCORE', base .. ':m', '-inf', int(now))) do
    if client ~= me then
      fallen[client] = true
      redis.call('ZREM', base .. ':m', client)
    end
  end
  if not next(fallen) or waiting == 0 then return end
  for _, token in ipairs(redis.call('ZRANGE', base .. ':q', 0, -1)) do
    local seat = seat_of(token)
    if seat and fallen[seat[1]] then leave_queue(token) end
  end
end

local function mark() redis.call('ZADD', base .. ':m', int(now + MARK_US), me) end

local function hand_out()
  while waiting > 0 do
    local token, seat, name, item
    for _, head in ipairs(heads()) do
      token = head[2]
      seat = seat_of(token)
      name, item = pick(token, seat[5], seat[6])
      if name then break end
    end
    if not name then return end
    leave_queue(token)
    item[STATE], item[BACK], item[REST] = 'offered', now + math.min(seat[2] * 1000, OFFER_US), seat[4]
    item[FENCE], item[TOKEN], item[CLIENT], item[OWNER] = next_fence(), token, seat[1], seat[7]
    item[TTL], item[TAG], item[PPM] = seat[2], seat[5], seat[6]
    put(name, item)
    ring(seat[1], token, seat[8])
  end
end

-- Time.

local function come_back(name)
  local item = load(name)
  local ends = item[BACK] + item[REST] * 1000
  if item[STATE] == 'lent' and ends > now then
    at_rest(item)
    item[STATE], item[BACK] = 'cooling', ends
    return put(name, item)
  end
  if item[STATE] == 'offered' then
    local client = item[CLIENT]
    local marked = tonumber(redis.call('ZSCORE', base .. ':m', client) or 0)
    if (client == me or marked > now) and (size > 0 or kind == 'rwlock') then
      if marked == 0 then redis.call('ZADD', base .. ':m', int(now), client) end
      join_queue(item[TOKEN], { client, item[TTL], now, item[REST], item[TAG], item[PPM], item[OWNER], false })
    end
  end
  free(name, item)
end

local function settle()
  if queued_before then drop_fallen() end
  local due = redis.call('ZRANGEBYSCORE', base .. ':b', '-inf', int(now), 'LIMIT', 0, DUE_AT_ONCE)
  for _, name in ipairs(due) do come_back(name) end
  hand_out()
end

local function rest(name, item, cool)
  if cool == 0 then
    free(name, item)
    return hand_out()
  end
  at_rest(item)
  item[STATE], item[BACK], item[REST] = 'cooling', now + cool * 1000, cool
  put(name, item)
  for _, head in ipairs(heads()) do
    local seat = seat_of(head[2])
    ring(seat[1], head[2], seat[8])
  end
end

local function until_ms(at) return math.max(1, math.ceil((at - now) / 1000)) end

local function next_ms()
  local at = kind == 'rwlock' and -1 or 0  -- a writer enters after the last
  local back = redis.call('ZRANGE', base .. ':b', at, at, 'WITHSCORES')[2]
  return back and until_ms(back) or 0
end

-- When the last of all that is away would be free, with its rest: for those who hear no more of this record.
local function all_ms()
  local name = redis.call('ZRANGE', base .. ':b', -1, -1)[1]
  if not name then return 0 end
  local item = load(name)
  return until_ms(item[BACK] + (item[STATE] == 'lent' and item[REST] * 1000 or 0))
end

local function tomb(token)
  if buried <= now then return end
  local text = redis.call('GET', base .. ':d:' .. token)
  if not text then return end
  local why, detail = string.match(text, '^(.-)\n(.*)$')
  return { why = why, detail = detail }
end

local function entomb(token, lasts, why, detail)
  redis.call('SET', base .. ':d:' .. token, why .. '\n' .. detail, 'PX', int(lasts / 1000))
  buried = math.max(buried, now + lasts)
end

local function not_held(token)
  local ended = tomb(token)
  return ended and { 'not held', ended.why, ended.detail } or { 'not held', 'expired', '' }
end

local KEPT = { ':i', ':f', ':b', ':t', ':o', ':q', ':h', ':w', ':m' }

local function commit(but)
  if queued_before and waiting == 0 and offers == 0 then redis.call('DEL', base .. ':m') end
  local ends = kind ~= 'pool' or size == 0  -- nobody has set it up, so it is forgotten by itself
  local before = ending
  ending = ends
  local record = cmsgpack.pack(fence, ticket, waiting, offers, buried, size, leaving, permits, shares, ending, life)
  if ends then
    local last = redis.call('ZRANGE', base .. ':b', -1, -1, 'WITHSCORES')[2] or 0
    local keep_ms = math.ceil((math.max(now, buried, tonumber(last)) - now) / 1000) + ARGV[2]
    redis.call('SET', base, record, 'PX', keep_ms)
    for _, key in ipairs(KEPT) do redis.call('PEXPIRE', base .. key, keep_ms) end
    for _, share in ipairs(lines()) do redis.call('PEXPIRE', base .. ':q:' .. share, keep_ms) end
  else
    redis.call('SET', base, record)
    if before then
      for _, key in ipairs(KEPT) do redis.call('PERSIST', base .. key) end
    end
  end
  for _, call in ipairs(calls) do
    local client, token, pops = unpack(call)
    if token == but then
      -- it hears the answer
    elseif pops then
      redis.pcall('RPUSH', base .. ':k:' .. token, '1')
      redis.pcall('PEXPIRE', base .. ':k:' .. token, OFFER_US / 1000)
    else
      redis.pcall('PUBLISH', client, token)
    end
  end
end
