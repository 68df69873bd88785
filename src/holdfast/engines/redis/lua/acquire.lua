-- Grant, confirm, queue or refuse, in one step that nobody can come between.
--
-- KEYS[1]  record
-- ARGV[5]  token
-- ARGV[6]  owner
-- ARGV[7]  ttl_ms
-- ARGV[8]  wait    1 to be kept in the queue if the lease is taken
--
-- Returns  {'granted', fence} | {'busy', owner, fence, remaining_ms, position or -1} | {'refused', why}
--
-- Same law as rules/lease.py: acquire.

--@include record.lua
local token, ttl = ARGV[5], tonumber(ARGV[7])
if token == last then return { 'refused', 'released' } end

local store
if quiet and holder and holder.expires <= now then holder = nil end
if not quiet or (holder and holder.token ~= token) then
  --@include queue.lua
  local ended = tomb(token)
  if ended then return { 'refused', ended.why } end

  settle()
  if holder and holder.token ~= token then
    local place = place_of(token)
    if ARGV[8] == '1' then
      if not place then
        place = #order
        join_queue(token, { client = me, ttl = ttl, since = now, owner = ARGV[6] })
      end
      marked = true
    elseif place then
      leave_queue(token)
      place = nil
    end
    commit()
    return { 'busy', holder.owner, int(holder.fence), math.ceil((holder.expires - now) / 1000), place or -1 }
  end
  store = commit
end

local held, since = holder and holder.fence, now
if holder and not holder.offered then since = holder.since end
if not held then
  fence = math.max(fence + 1, now)
  held = fence
end
holder = { token = token, client = me, owner = ARGV[6], fence = held, ttl = ttl, since = since,
  expires = now + ttl * 1000, offered = false }
if store then
  store()
else
  --@include write.lua
end
return { 'granted', string.format('%.0f', held) }
