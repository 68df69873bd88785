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
if before then return { 'published', unpack(cmsgpack.unpack(before)) } end

local ids, fresh, seen = {}, {}, {}
for i = 5, #ARGV, 3 do
  local id, options, wait_ms, lasts_ms, lane, dedup = ARGV[i], ARGV[i + 1], 0, 0, '', ''
  if options ~= '' then
    local first, second, length, at = string.match(options, '^(%d+) (%d+) (%d+)\n()')
    wait_ms, lasts_ms = tonumber(first), tonumber(second)
    lane, dedup = string.sub(options, at, at + length - 1), string.sub(options, at + length)
  end
  local known = dedup ~= '' and (seen[dedup] or redis.call('GET', base .. ':dup:' .. dedup))
  if not known then
    fresh[#fresh + 1] = { id, ARGV[i + 2], wait_ms, lasts_ms, lane, dedup }
    if dedup ~= '' then seen[dedup] = id end
  end
  ids[#ids + 1] = known or id
end
if ARGV[4] ~= '0' and #fresh > 0 then
  local size = redis.call('HLEN', base .. ':m')
  if size + #fresh > tonumber(ARGV[4]) then return { 'crowded', size } end
end

local ready, head = 0, int(now) .. ' 0 0 0 0 0\n'
for _, draft in ipairs(fresh) do
  if draft[3] > 0 then
    delay(head .. draft[2], now + draft[3] * 1000)
  else
    append(draft[5], head .. draft[2])
    ready = ready + 1
  end
end
check()
store()
for _, draft in ipairs(fresh) do
  if draft[6] ~= '' and draft[4] > 0 then redis.call('SET', base .. ':dup:' .. draft[6], draft[1], 'PX', draft[4]) end
end
redis.call('SET', said, cmsgpack.pack(ids), 'PX', SAID_MS)
count('published', #fresh)
count('repeated', #ids - #fresh)
ring(ready)
save(#fresh == 0)
wake()
return { 'published', unpack(ids) }
