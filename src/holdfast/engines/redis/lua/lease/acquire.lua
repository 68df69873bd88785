-- Grant the lease, confirm an offer, add the token to the waiting line, or refuse; in one atomic step.
--
-- KEYS[1]  record
-- ARGV[3]  token
-- ARGV[4]  holder
-- ARGV[5]  ttl_ms
-- ARGV[6]  wait    if the lease is taken: 0 do not wait, 1 wait for a published wake-up, 2 wait for a pushed one (BLPOP)
--
-- Returns  fence | {'busy', holder, fence, remaining_ms, position or -1} | {'refused', reason}
--
-- Twin of rules/lease.py: acquire.

--@include lease/record.lua
--@const RELEASED = rules.lease.RELEASED
--@const NEAR_HEARTBEAT_MS = rules.trust.NEAR_HEARTBEAT_MS
local token, wait = ARGV[3], ARGV[6]
if token == last then return { 'refused', RELEASED } end

local store
if record_only and offered then return { err = 'TRYAGAIN the waiting line of this name is moving' } end
if holder_token ~= token or expires <= now then
  if record_only and (tombstones_until > now or waiting > 0 or (holder_token and expires > now and wait ~= '0')) then
    return { err = 'TRYAGAIN the waiting line of this name is moving' }
  end
  if tombstones_until > now then
    local ended = redis.call('GET', base .. ':ended:' .. token)
    if ended then return { 'refused', string.match(ended, '^(.-)\n') } end
  end
  if waiting > 0 or offered or (holder_token and expires > now) then
    --@include lease/waiting_line.lua
    --@include lease/commit.lua
    advance()
    if holder_token and holder_token ~= token then
      local place = place_of(token)
      if place and not waiter_of(token) then  -- a key was lost, and with it the waiter's data
        remove(token)
        place = nil
      end
      heartbeat = wait ~= '0' and NEAR_HEARTBEAT_MS  -- the first heartbeat of a waiter comes soon
      if not heartbeat then
        if place then leave_line(token) end
        place = nil
      elseif not place then
        place = length()
        join_line(token, { caller, tonumber(ARGV[5]), now, ARGV[4], wait == '2' })
      else
        freeing = true  -- a waiter that has a place keeps it, also at maxmemory
        if waiter[token][5] ~= (wait == '2') then
          waiter[token][5] = wait == '2'
          changed = token
        end
      end
      commit()
      return { 'busy', holder, int(held), math.ceil((expires - now) / 1000), place or -1 }
    end
    store = commit
  else
    holder_token = nil
  end
end

if not holder_token then
  fence = math.max(fence + 1, now)
  held, since = fence, now
elseif offered then
  freeing = true  -- the token has the offer: the grant succeeds, also at maxmemory
  since = now
  if waiting == 0 and not store then redis.call('DEL', base .. ':heartbeats') end
end
ttl = tonumber(ARGV[5])
holder_token, client, holder, expires, offered = token, caller, ARGV[4], now + ttl * 1000, false
if store then
  store()
else
  --@inline lease/write.lua
end
return string.format('%.0f', held)
