-- The waiting line of a name: the waiters in order, and the heartbeats of their clients. For contended names.
--
-- KEYS[1]  record
-- ARGV     as in lease/record.lua
--
-- Returns  nothing; it defines the functions advance, offer, free and so on for the command.
--
-- Twin of rules/lease.py: advance, offer. This file writes nothing; lease/commit.lua does. The script reads the whole line
-- only when a client has gone silent, the first client is in doubt, or `show` lists the line: otherwise a command costs the
-- same for two waiters and for ten thousand.

--@const OFFER_MAX_US = rules.lease.OFFER_MAX_US
--@const DOUBT_MS = rules.trust.DOUBT_MS
local line_key, waiters_key = base .. ':line', base .. ':waiters'
local heartbeats_key = base .. ':heartbeats'

-- Lua would print a fence as 1.7e+15.
local function int(number) return string.format('%.0f', number) end

local fence_before = holder_token and held
local contended_before = waiting > 0 or offered

local order                         -- the whole line, if it was read; then `waiter` has every waiter
local waiter = {}                   -- token -> { client, ttl_ms, since_us, holder, pops }
local removed, is_removed = {}, {}  -- tokens that leave the line, in order and as a set
local joined = {}                   -- tokens that join the line: a waiter whose offer lapsed, and the caller's token
local silent = {}                   -- clients whose heartbeat lapsed
local doubtful = {}                 -- clients that may be dead: other waiters come first
local missed                        -- a client that let its offer lapse, and the new end of its heartbeat
local tombstone                     -- a tombstone to add
local heartbeat = false             -- for how many milliseconds the caller's heartbeat counts, if commit records one
local without_heartbeat             -- a waiting client that has no heartbeat: commit records one that lapses now
local pops = false                  -- whether the waiter with the offer blocks on the server
local changed                       -- a waiter that changes between published and pushed wake-ups

local function each_thousand(list, call)
  for first = 1, #list, 1000 do
    call(unpack(list, first, math.min(first + 999, #list)))
  end
end

local function remove(token)
  removed[#removed + 1], is_removed[token] = token, true
end

local function leave_line(token)
  for i, other in ipairs(joined) do
    if other == token then return table.remove(joined, i) end
  end
  if waiting > 0 and not is_removed[token] and redis.call('ZSCORE', line_key, token) then remove(token) end
end

local function join_line(token, place)
  joined[#joined + 1], waiter[token] = token, place
end

-- Return the length of the line after the changes of this script.
local function length() return waiting - #removed + #joined end

local function read_line()
  if order then return end
  order = {}
  if waiting == 0 then return end
  local tokens = redis.call('ZRANGE', line_key, 0, -1)
  each_thousand(tokens, function(...)
    local part = { ... }
    local texts = redis.call('HMGET', waiters_key, ...)
    for i, token in ipairs(part) do
      if texts[i] then
        waiter[token] = { cmsgpack.unpack(texts[i]) }
        order[#order + 1] = token
      elseif not is_removed[token] then
        remove(token)
      end
    end
  end)
end

local function waiter_of(token)
  if not waiter[token] then
    local text = redis.call('HGET', waiters_key, token)
    if text then waiter[token] = { cmsgpack.unpack(text) } end
  end
  return waiter[token]
end

-- Return the token of the first waiter, or nothing.
local function first()
  if not order then
    -- The removed tokens stood at the head of the line, so the next one follows them.
    local heads = redis.call('ZRANGE', line_key, 0, #removed)
    if #heads == 0 and waiting > 0 then waiting, line_until = #removed, 0 end  -- the line was lost
    for _, token in ipairs(heads) do
      if not is_removed[token] then
        if waiter_of(token) and not doubtful[waiter[token][1]] then return token end
        read_line()  -- its client is in doubt, or a key was lost: read all of them
        break
      end
    end
  end
  local in_doubt
  for _, tokens in ipairs({ order or {}, joined }) do
    for _, token in ipairs(tokens) do
      if not is_removed[token] then
        if not doubtful[waiter[token][1]] then return token end
        in_doubt = in_doubt or token
      end
    end
  end
  return in_doubt
end

-- Return how many waiters are ahead of this token; nothing if it does not wait.
local function place_of(token)
  for i, other in ipairs(joined) do
    if other == token then return waiting - #removed + i - 1 end
  end
  if waiting == 0 or is_removed[token] then return end
  if not order then
    local place = redis.call('ZRANK', line_key, token)
    return place and place - #removed  -- the removed tokens stood at the head
  end
  local place = 0
  for _, other in ipairs(order) do
    if other == token then return place end
    if not is_removed[other] then place = place + 1 end
  end
end

local function next_fence()
  fence = math.max(fence + 1, now)
  return fence
end

local function offer(token)
  local chosen = waiter_of(token)
  leave_line(token)
  holder_token, client, ttl, holder, pops = token, chosen[1], chosen[2], chosen[4], chosen[5]
  held, since, expires, offered = next_fence(), now, now + math.min(ttl * 1000, OFFER_MAX_US), true
end

local function free()
  holder_token, offered = nil, false
end

local function offer_first()
  local token = length() > 0 and first()
  if token then offer(token) end
end

-- Remove the waiters of silent clients, and find those in doubt. Read the whole line only if a client is silent.
local function drop_silent()
  local found = redis.call('ZRANGEBYSCORE', heartbeats_key, '-inf', int(now + DOUBT_MS * 1000), 'WITHSCORES')
  for i = 1, #found, 2 do
    local other = found[i]
    if other == caller then
      -- it is alive: it has just sent this command
    elseif tonumber(found[i + 1]) <= now then
      silent[#silent + 1] = other
      silent[other] = true
    else
      doubtful[other] = true
    end
  end
  if #silent == 0 then return end
  read_line()
  for _, token in ipairs(order) do
    if silent[waiter[token][1]] then remove(token) end
  end
end

local function advance()
  if contended_before then drop_silent() end
  if holder_token and expires <= now then
    -- Read the heartbeat from its key: an earlier command has deleted it if the client went silent.
    local heartbeat_until = offered and tonumber(redis.call('ZSCORE', heartbeats_key, client) or 0)
    if offered and (client == caller or heartbeat_until > now) then
      if heartbeat_until == 0 then without_heartbeat = client end
      if client ~= caller then
        doubtful[client] = true
        missed = { client, math.min(heartbeat_until, now + DOUBT_MS * 1000) }
      end
      -- The client is alive and may have missed the wake-up: it gets the last place in the line.
      join_line(holder_token, { client, ttl, now, holder, false })
    end
    free()
  end
  if not holder_token then offer_first() end
end
