-- Send these messages: all of them, or none.
--
-- KEYS[1]  the name's own key
-- ARGV[3]  token   of this call
-- ARGV[4]  bound   how many messages the queue may have; 0 for any number
-- ARGV[5…] drafts  for each: id; options, or nothing if it has no delay, no dedup key, no key and no lane: `delay_ms
--                  dedup_ms`, a new line, dedup key; and the text that its sender has made, as in queue/messages.lua
--
-- Returns  {'published', id…} | {'crowded', size}
--
-- Same law as rules/queue/messages.py: publish.

--@include queue/state.lua
local RESULT_MEMORY_MS = 60000
local said = base .. ':said:' .. ARGV[3]
local before = redis.call('GET', said)
if before and before ~= '' then return { 'published', unpack(cmsgpack.unpack(before)) } end

local function key_and_lane(text)
  local id, headers, key, lane, from = string.match(text, '^(%d+) (%d+) (%d+) (%d+)\n()')
  from = from + id + headers
  local past = from + key
  return key ~= '0' and string.sub(text, from, past - 1) or nil, string.sub(text, past, past + lane - 1)
end

local words, asked, led = ARGV, {}, {}  -- keys; and those that have a message
for i = 5, #words, 3 do
  if words[i + 1] ~= '' then asked[#asked + 1] = key_and_lane(words[i + 2]) or nil end
end
for i, first in ipairs(leads(asked)) do led[asked[i]] = first end

local answer, fresh, ready, head = { 'published' }, 0, 0, int(now) .. ' 0 0 0 0 0\n'
local keys, seen = {}, {}  -- what is to be known: key, id, lasts_ms …; and the same by key
for i = 5, #words, 3 do
  local id, options, text = words[i], words[i + 1], words[i + 2]
  if before then
    -- sent before, and none of it had been sent earlier
  elseif options == '' then
    append('', head .. text)
    fresh, ready = fresh + 1, ready + 1
  else
    local wait_ms, lasts_ms, at = string.match(options, '^(%d+) (%d+)\n()')
    local dedup = string.sub(options, at)
    local known = dedup ~= '' and (seen[dedup] or redis.call('GET', base .. ':dup:' .. dedup))
    if known then
      id = known
    else
      if dedup ~= '' then
        seen[dedup] = id
        if lasts_ms ~= '0' then keys[#keys + 1] = { dedup, id, lasts_ms } end
      end
      fresh = fresh + 1
      local key, lane = key_and_lane(text)
      if key and (led[key] or firsts[key]) then
        line_up(head .. text, key)
      elseif wait_ms ~= '0' then
        delay(head .. text, now + wait_ms * 1000, key)
      else
        append(lane, head .. text, key)
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
redis.call('SET', said, repeated > 0 and cmsgpack.pack({ unpack(answer, 2) }) or '', 'PX', RESULT_MEMORY_MS)
count('published', fresh)
count('deduplicated', repeated)
ring(ready)
save(fresh == 0)
wake()
return answer
