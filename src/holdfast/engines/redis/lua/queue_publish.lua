-- Send these messages: all of them, or none.
--
-- KEYS[1]  the name's own key
-- ARGV[3]  token   of this call
-- ARGV[4]  bound   how many messages the queue may have; 0 for any number
-- ARGV[5…] drafts  for each: id; options, empty or `delay_ms dedup_ms #lane`, a new line, lane, dedup key; and the text
--                  that its sender has made, as in queue_letters.lua
--
-- Returns  {'published', id…} | {'crowded', size}
--
-- Same law as rules/queue.py: publish.

--@include queue_depot.lua
local SAID_MS = 60000
local said = base .. ':said:' .. ARGV[3]
local before = redis.call('GET', said)
if before and before ~= '' then return { 'published', unpack(cmsgpack.unpack(before)) } end

local answer, fresh, ready, head = { 'published' }, 0, 0, int(now) .. ' 0 0 0 0 0\n'
local keys, seen = {}, {}  -- what is to be known: key, id, lasts_ms …; and the same by key
for i = 5, #ARGV, 3 do
  local id, options = ARGV[i], ARGV[i + 1]
  if before then
    -- sent before, and none of it had been sent earlier
  elseif options == '' then
    append('', head .. ARGV[i + 2])
    fresh, ready = fresh + 1, ready + 1
  else
    local wait_ms, lasts_ms, length, at = string.match(options, '^(%d+) (%d+) (%d+)\n()')
    local lane, dedup = string.sub(options, at, at + length - 1), string.sub(options, at + length)
    local known = dedup ~= '' and (seen[dedup] or redis.call('GET', base .. ':dup:' .. dedup))
    if known then
      id = known
    else
      if dedup ~= '' then
        seen[dedup] = id
        if lasts_ms ~= '0' then keys[#keys + 1] = { dedup, id, lasts_ms } end
      end
      fresh = fresh + 1
      if wait_ms ~= '0' then
        delay(head .. ARGV[i + 2], now + wait_ms * 1000)
      else
        append(lane, head .. ARGV[i + 2])
        ready = ready + 1
      end
    end
  end
  answer[#answer + 1] = id
end
if before then return answer end
if ARGV[4] ~= '0' and fresh > 0 then
  local size = redis.call('HLEN', base .. ':m')
  if size + fresh > tonumber(ARGV[4]) then return { 'crowded', size } end
end

check()
store()
for _, key in ipairs(keys) do redis.call('SET', base .. ':dup:' .. key[1], key[2], 'PX', key[3]) end
local repeated = #answer - 1 - fresh
redis.call('SET', said, repeated > 0 and cmsgpack.pack({ unpack(answer, 2) }) or '', 'PX', SAID_MS)
count('published', fresh)
count('repeated', repeated)
ring(ready)
save(fresh == 0)
wake()
return answer
