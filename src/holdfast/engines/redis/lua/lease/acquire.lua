-- Grant, confirm, queue or refuse, in one step that nobody can come between.
--
-- KEYS[1]  record
-- ARGV[3]  token
-- ARGV[4]  owner
-- ARGV[5]  ttl_ms
-- ARGV[6]  wait    what to do if the lease is taken: 0 nothing, 1 queue and be rung, 2 queue and pop the bell
--
-- Returns  fence | {'busy', owner, fence, remaining_ms, position or -1} | {'refused', why}
--
-- Same law as rules/lease.py: acquire.

--@include lease/record.lua
local token, wait = ARGV[3], ARGV[6]
if token == last then return { 'refused', 'released' } end

local store
if alone and offered then return { err = 'TRYAGAIN the queue of this name is on its way' } end
if holder ~= token or expires <= now then
  if alone and (buried > now or waiting > 0 or (holder and expires > now and wait ~= '0')) then
    return { err = 'TRYAGAIN the queue of this name is on its way' }
  end
  if buried > now then
    local ended = redis.call('GET', base .. ':d:' .. token)
    if ended then return { 'refused', string.match(ended, '^(.-)\n') } end
  end
  if waiting > 0 or offered or (holder and expires > now) then
    --@include lease/waiting_line.lua
    settle()
    if holder and holder ~= token then
      local place = place_of(token)
      if place and not seat_of(token) then  -- a key was lost, and with it what is known of this place
        take_out(token)
        place = nil
      end
      marked = wait ~= '0'
      if not marked then
        if place then leave_queue(token) end
        place = nil
      elseif not place then
        place = length()
        join_queue(token, { me, tonumber(ARGV[5]), now, ARGV[4], wait == '2' })
      else
        freeing = true  -- it has its place: at maxmemory too
        if seat[token][5] ~= (wait == '2') then
          seat[token][5] = wait == '2'
          reseated = token
        end
      end
      commit()
      return { 'busy', owner, int(held), math.ceil((expires - now) / 1000), place or -1 }
    end
    store = commit
  else
    holder = nil
  end
end

if not holder then
  fence = math.max(fence + 1, now)
  held, since = fence, now
elseif offered then
  freeing = true  -- it was promised: at maxmemory too
  since = now
  if waiting == 0 and not store then redis.call('DEL', base .. ':m') end
end
ttl = tonumber(ARGV[5])
holder, client, owner, expires, offered = token, me, ARGV[4], now + ttl * 1000, false
if store then
  store()
else
  --@include lease/write.lua
end
return string.format('%.0f', held)
