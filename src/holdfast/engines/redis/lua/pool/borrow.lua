-- Lend, confirm, queue or refuse, in one step that nobody can come between.
--
-- KEYS[1]  the name's own key
-- ARGV[4]  token
-- ARGV[5]  owner
-- ARGV[6]  ttl_ms
-- ARGV[7]  cooldown_ms   how long the item cools if its lease lapses
-- ARGV[8]  tag       who may use a share and no more; empty for all
-- ARGV[9]  ppm       the share, in millionths
-- ARGV[10] permits   of a semaphore; 0 for a pool
-- ARGV[11] wait      what to do if there is none: 0 nothing, 1 queue and be rung, 2 queue and pop the bell
--
-- Returns  {'lent', fence, item, life} | {'short', why, fence, remaining_ms, position or -1, all_ms, life}
--          | {'refused', why}
--
-- Same law as rules/pool.py: borrow.

--@include pool/pool.lua
local token, ttl, rests, tag, ppm = ARGV[4], tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8], tonumber(ARGV[9])
local asked, wait = tonumber(ARGV[10]), ARGV[11]
local name, item = taken_by(token)
if item or seat_of(token) then make_way() end  -- it has its place: at maxmemory too
if not item or item[BACK] <= now then
  local ended = tomb(token)
  if ended then return { 'refused', ended.why } end
  settle()
  if asked > 0 and asked ~= permits then
    if permits > 0 then
      commit()
      return { 'refused', 'other permits' }
    end
    for number = 1, asked do put(tostring(number), new_item(number)) end
    permits, size = asked, asked
    regroup()
  end
  name, item = taken_by(token)
end
local seat = not item and seat_of(token)
-- Whatever is free now, nobody in the queue may use; only of a read-write lock everybody might.
if not item and not seat and not (kind == 'rwlock' and waiting > 0) then name, item = pick(token, tag, ppm) end

if not item then
  local place = seat and redis.call('ZRANK', base .. ':q', token)
  local empty = size == 0 and kind ~= 'rwlock'
  if not empty and wait ~= '0' then
    if not place then
      place = waiting
      join_queue(token, { me, ttl, now, rests, tag, ppm, ARGV[5], wait == '2' })
    elseif seat[8] ~= (wait == '2') then
      seat[8] = wait == '2'
      sit(token, seat)
    end
    mark()
  elseif place then
    leave_queue(token)
    place = nil
  end
  local others = ppm < WHOLE and freest('', WHOLE)
  local why = empty and 'empty pool' or others and 'share used up' or kind == 'rwlock' and 'busy' or 'all busy'
  local answer = { 'short', why, int(fence), next_ms(), place or -1, all_ms(), life }
  commit()
  return answer
end

local new = item[STATE] ~= 'lent'
if item[STATE] == 'free' then item[FENCE] = next_fence() end
if new then item[USED], item[SINCE] = item[USED] + 1, now end
item[STATE], item[ORDER], item[BACK], item[REST] = 'lent', item[FENCE], now + ttl * 1000, rests
item[TOKEN], item[CLIENT], item[OWNER], item[TTL], item[TAG], item[PPM] = token, me, ARGV[5], ttl, '', WHOLE
put(name, item)
commit(token)
return { 'lent', int(item[FENCE]), name, life }
