-- Lend an item, confirm an offer, add the token to the waiting line, or refuse; in one atomic step.
--
-- KEYS[1]  the name's own key
-- ARGV[4]  token
-- ARGV[5]  holder
-- ARGV[6]  ttl_ms
-- ARGV[7]  cooldown_ms  how long the item cools if its lease expires
-- ARGV[8]  tag          the user of a share; empty for all items
-- ARGV[9]  share_ppm    the share, in millionths
-- ARGV[10] permits      of a semaphore; 0 for a pool
-- ARGV[11] wait         if no item is free: 0 do not wait, 1 wait for a published wake-up, 2 wait for a pushed one (BLPOP)
--
-- Returns  {'lent', fence, item, life} | {'none free', reason, fence, remaining_ms, position or -1, all_ms, life}
--          | {'refused', reason}
--
-- Twin of rules/pool.py: borrow.

--@include pool/state.lua
--@include pool/waiting_line.lua
--@include pool/advance.lua
--@include pool/tombstones.lua
--@include pool/times.lua
--@include pool/commit.lua
--@const OTHER_PERMITS = rules.pool.OTHER_PERMITS
--@const EMPTY_POOL = rules.pool.EMPTY_POOL
--@const SHARE_USED_UP = rules.pool.SHARE_USED_UP
--@const ALL_BUSY = rules.pool.ALL_BUSY
--@const BUSY = rules.pool.BUSY
--@const NEAR_HEARTBEAT_MS = rules.trust.NEAR_HEARTBEAT_MS
local token, ttl, cooldown_ms, tag, ppm = ARGV[4], tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8], tonumber(ARGV[9])
local wanted, wait = tonumber(ARGV[10]), ARGV[11]
local name, item = taken_by(token)
if item or waiter_of(token) then allow_at_maxmemory() end  -- a token that has an item or a place keeps it, also at maxmemory
if not item or item[BACK] <= now then
  local ended = find_tombstone(token)
  if ended then return { 'refused', ended.why } end
  advance()
  if wanted > 0 and wanted ~= permits then
    if permits > 0 then
      commit()
      return { 'refused', OTHER_PERMITS }
    end
    for number = 1, wanted do put(tostring(number), new_item(number)) end
    permits, size = wanted, wanted
    reset_shares()
  end
  name, item = taken_by(token)
end
local waiter = not item and waiter_of(token)
-- After `advance`, no waiter of a pool or semaphore can use an item that is still free, so the caller may take it. A
-- read-write lock has one line, and the caller does not overtake its waiters.
if not item and not waiter and not (kind == RWLOCK and waiting > 0) then name, item = pick(token, tag, ppm) end

if not item then
  local place = waiter and redis.call('ZRANK', base .. ':line', token)
  local empty = size == 0 and kind ~= RWLOCK
  if not empty and wait ~= '0' then
    if not place then
      place = waiting
      join_line(token, { caller, ttl, now, cooldown_ms, tag, ppm, ARGV[5], wait == '2' })
    elseif waiter[8] ~= (wait == '2') then
      waiter[8] = wait == '2'
      store_waiter(token, waiter)
    end
    record_heartbeat(NEAR_HEARTBEAT_MS)  -- the first heartbeat of a waiter comes soon
  elseif place then
    leave_line(token)
    place = nil
    offer_free_items()  -- readers may have waited only for this writer
  end
  local free_elsewhere = ppm < WHOLE_PPM and next_free('', WHOLE_PPM)
  local reason = empty and EMPTY_POOL or free_elsewhere and SHARE_USED_UP or kind == RWLOCK and BUSY or ALL_BUSY
  local answer = { 'none free', reason, int(fence), next_ms(), place or -1, all_ms(), life }
  commit()
  return answer
end

local new = item[STATE] ~= LENT
if item[STATE] == FREE then item[FENCE] = next_fence() end
if new then item[USED], item[SINCE] = item[USED] + 1, now end
item[STATE], item[ORDER], item[BACK], item[COOLDOWN] = LENT, item[FENCE], now + ttl * 1000, cooldown_ms
item[TOKEN], item[CLIENT], item[HOLDER], item[TTL] = token, caller, ARGV[5], ttl
item[TAG], item[SHARE_PPM] = '', WHOLE_PPM
put(name, item)
commit(token)
return { 'lent', int(item[FENCE]), name, life }
