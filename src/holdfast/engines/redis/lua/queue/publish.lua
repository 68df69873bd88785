-- Publish all of these messages, or none.
--
-- KEYS[1]  the name's own key
-- ARGV[3]  token     of this command
-- ARGV[4]  bound     how many messages the queue may hold; 0 for no bound
-- ARGV[5…] messages  for each: id; options, or empty if it has no delay, no deduplication key, no key and no lane:
--                    `delay_ms dedup_ms`, a new line, deduplication key; and its text, as in queue/message.lua
--
-- Returns  {'published', id…} | {'publish refused', size}
--
-- Twin of rules/queue/messages.py: publish.

--@include queue/state.lua
--@include queue/consumer_read.lua
--@include queue/write.lua
--@include queue/wake.lua
--@const RESULT_MEMORY_MS = rules.queue.messages.RESULT_MEMORY_MS
--@const PUBLISHED = rules.queue.state.PUBLISHED
--@const DEDUPLICATED = rules.queue.state.DEDUPLICATED
-- The tokens of the last minute are in one key, because a slot with a key per publish would take long to move. Only a
-- command with a duplicate has a result of its own.
local tokens, result_key = base .. ':published', base .. ':result:' .. ARGV[3]
local until_us = redis.call('ZSCORE', tokens, ARGV[3])
local before = until_us and tonumber(until_us) > now
local duplicates_before = before and redis.call('GET', result_key)
if duplicates_before then return { 'published', unpack(cmsgpack.unpack(duplicates_before)) } end

local function key_and_lane(text)
  local id, headers, key, lane, from = string.match(text, '^(%d+) (%d+) (%d+) (%d+)\n()')
  from = from + id + headers
  local past = from + key
  return key ~= '0' and string.sub(text, from, past - 1) or nil, string.sub(text, past, past + lane - 1)
end

local arguments, keys, stored_heads = ARGV, {}, {}
for i = 5, #arguments, 3 do
  if arguments[i + 1] ~= '' then keys[#keys + 1] = key_and_lane(arguments[i + 2]) or nil end
end
for i, head in ipairs(heads_of(keys)) do stored_heads[keys[i]] = head end

local answer, fresh, ready, record_of_new = { 'published' }, 0, 0, int(now) .. ' 0 0 0 0 0\n'
local dedups, seen = {}, {}  -- to write: { key, id, lasts_ms } …; and the ids of this command by deduplication key
for i = 5, #arguments, 3 do
  local id, options, text = arguments[i], arguments[i + 1], arguments[i + 2]
  if before then
    -- published before, and no message was a duplicate
  elseif options == '' then
    add_ready('', record_of_new .. text)
    fresh, ready = fresh + 1, ready + 1
  else
    local wait_ms, lasts_ms, at = string.match(options, '^(%d+) (%d+)\n()')
    local dedup = string.sub(options, at)
    local known = dedup ~= '' and (seen[dedup] or redis.call('GET', base .. ':dedup:' .. dedup))
    if known then
      id = known
    else
      if dedup ~= '' then
        seen[dedup] = id
        if lasts_ms ~= '0' then dedups[#dedups + 1] = { dedup, id, lasts_ms } end
      end
      fresh = fresh + 1
      local key, lane = key_and_lane(text)
      if key and (stored_heads[key] or heads[key]) then
        add_behind(record_of_new .. text, key)
      elseif wait_ms ~= '0' then
        add_delayed(record_of_new .. text, now + wait_ms * 1000, key)
      else
        add_ready(lane, record_of_new .. text, key)
        ready = ready + 1
      end
    end
  end
  answer[#answer + 1] = id
end
if before then return answer end
if ARGV[4] ~= '0' and fresh > 0 then
  local size = redis.call('HLEN', base .. ':messages')
  if size + fresh > tonumber(ARGV[4]) then return { 'publish refused', size } end
end

check_types()
store()
for _, each in ipairs(dedups) do redis.call('SET', base .. ':dedup:' .. each[1], each[2], 'PX', each[3]) end
local duplicates = #answer - 1 - fresh
if duplicates > 0 then redis.call('SET', result_key, cmsgpack.pack({ unpack(answer, 2) }), 'PX', RESULT_MEMORY_MS) end
local ended = redis.call('ZRANGEBYSCORE', tokens, '-inf', int(now), 'LIMIT', 0, 4)
if #ended > 0 then redis.call('ZREM', tokens, unpack(ended)) end
redis.call('ZADD', tokens, int(now + RESULT_MEMORY_MS * 1000), ARGV[3])
redis.call('PEXPIRE', tokens, 2 * RESULT_MEMORY_MS)  -- twice, in case the server's clock went back in between
add_to_counter(PUBLISHED, fresh)
add_to_counter(DEDUPLICATED, duplicates)
wake_waiting(ready)
save(fresh == 0)
publish_wakeups()
return answer
