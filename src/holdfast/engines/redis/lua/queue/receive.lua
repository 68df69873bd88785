-- Deliver ready messages to a consumer, and wake others if more are ready than it took.
--
-- KEYS[1]  the name's own key
-- ARGV[3]  token
-- ARGV[4]  most
-- ARGV[5]  wait            1 to wait for a wake-up if there is no message
-- ARGV[6]  quarantine_max  how many messages in quarantine the consumer accepts; 0 unless it holds nothing new
-- ARGV[7]  fair_share      1 to take no more than an equal share of the ready messages
-- ARGV[8]  lanes           the number of lanes; the lanes follow. Then, optionally: `known` and the entries that the
--                          consumer knows; or `seen` and the largest fence that it has received
--
-- Returns  {'received', position or -1, next_ms, drain, {fence…}, {lost entry…}, entry, text…} | {'unknown consumer'}; if
--          there is only one fence, it is the fence of the first entry, and each further entry's fence is one larger
--
-- Twin of rules/queue/messages.py: receive. A lane that the record does not name has no messages, and costs nothing.

--@include queue/state.lua
--@include queue/consumer_read.lua
--@include queue/consumer_write.lua
--@include queue/text.lua
--@include queue/texts.lua
--@include queue/message.lua
--@include queue/write.lua
--@include queue/requeue.lua
--@include queue/wake.lua
--@const PAGE_BYTES = commands.queue.PAGE_BYTES
--@const DRAIN_US = rules.queue.messages.DRAIN_US
--@const RECEIVED = rules.queue.state.RECEIVED
local FIRST_READ = 8
local token, most, lane_count = ARGV[3], math.min(tonumber(ARGV[4]), PART), tonumber(ARGV[8])
local held_key, past_lanes = base .. ':held:' .. token, 9 + lane_count
local consumer = live_consumer(token)
if not consumer then return { 'unknown consumer' } end
local changed = false

local due = redis.call('ZRANGEBYSCORE', base .. ':delayed', '-inf', int(now), 'LIMIT', 0, BATCH_MAX)
if #due > 0 then
  for i, text in ipairs(texts_of(due)) do
    if text then requeue(due[i], text) end
  end
  check_types()
  allow_at_maxmemory()
  store()
  redis.call('ZREM', base .. ':delayed', unpack(due))
  redis.call('HDEL', base .. ':messages', unpack(due))
  save()
end

-- Find the entries that the consumer knows but does not hold; and the messages that it holds but does not know, because an
-- answer was lost: `unseen` if there are any.
local found, lost, unseen, quarantined = {}, {}, false, false
if ARGV[past_lanes] == 'seen' then
  local newer = redis.call('ZRANGEBYSCORE', held_key, '(' .. ARGV[past_lanes + 1], '+inf', 'LIMIT', 0, most)
  for i, text in ipairs(texts_of(newer)) do
    if text then found[#found + 1] = newer[i] end
  end
  unseen = #found > 0
elseif ARGV[past_lanes] then
  local known, is_known = {}, {}
  for i = past_lanes + 1, #ARGV do known[#known + 1], is_known[ARGV[i]] = ARGV[i], true end
  for i, held in ipairs(fences_of(known, token)) do
    if not held then lost[#lost + 1] = known[i] end
  end
  for _, entry in ipairs(redis.call('ZRANGE', held_key, 0, #known + BATCH_MAX - 1)) do
    if not is_known[entry] and #found < most then found[#found + 1] = entry end
  end
  unseen = #found > 0
end

local sizes, ready = {}, 0  -- lane -> length, of the lanes of the command and of the quarantine; the sum without it
for _, lane in ipairs(lanes) do
  local wanted = false
  for i = 9, past_lanes - 1 do wanted = wanted or ARGV[i] == lane end
  if wanted or lane == QUARANTINE then sizes[lane] = redis.call('LLEN', base .. ':ready:' .. lane) end
  if wanted then ready = ready + sizes[lane] end
end

local sources = {}  -- { lane, how many entries were read from it } …
if not unseen then
  local quarantine_max = math.min(tonumber(ARGV[6]), most)
  if quarantine_max > 0 and (sizes[QUARANTINE] or 0) > 0 then
    found = redis.call('LRANGE', base .. ':ready:' .. QUARANTINE, 0, quarantine_max - 1)
    quarantined, most, sources[1] = true, 0, { QUARANTINE, #found }
  elseif ARGV[7] == '1' then
    -- Take at most an equal share of the ready messages, and hold at most an equal share of all; but take at least one.
    local consumers, held = redis.call('HLEN', base .. ':consumers'), redis.call('HLEN', base .. ':messages')
    for _, lane in ipairs(lanes) do held = held - (sizes[lane] or redis.call('LLEN', base .. ':ready:' .. lane)) end
    held = held - redis.call('ZCARD', base .. ':delayed') - redis.call('ZCARD', base .. ':behind')
    local fair = math.ceil((ready + held) / consumers) - redis.call('ZCARD', held_key)
    most = math.min(most, math.max(1, math.min(math.ceil(ready / consumers), fair)))
  end
  local done = {}
  for i = 9, past_lanes - 1 do
    local lane = ARGV[i]
    if #found < most and not done[lane] and (sizes[lane] or 0) > 0 then
      done[lane] = true
      local entries = redis.call('LRANGE', base .. ':ready:' .. lane, 0, most - #found - 1)
      for _, entry in ipairs(entries) do found[#found + 1] = entry end
      sources[#sources + 1] = { lane, #entries }
    end
  end
end

-- Read the first few messages, and then as many at a time as their size suggests, so that an answer hardly exceeds PAGE_BYTES.
local answer, deliveries, many, at, bytes, first = { 'received', -1, 0, 0, {}, lost }, {}, 0, 1, 0, math.max(fence + 1, now)
while at <= #found and bytes < PAGE_BYTES do
  local past = math.min(#found, at == 1 and FIRST_READ or math.max(at, math.floor((at - 1) * PAGE_BYTES / (bytes + 1))))
  for i, text in ipairs(redis.call('HMGET', base .. ':messages', unpack(found, at, past))) do
    if text then
      local entry = found[at + i - 1]
      answer[2 * many + 7], answer[2 * many + 8] = entry, text
      deliveries[2 * many + 1], deliveries[2 * many + 2] = first + many, entry
      many, bytes = many + 1, bytes + #text
      if has_key(entry) and not unseen then
        local key = key_of(text)
        if key then set_head(key, entry .. ' ' .. token) end
      end
    end
  end
  at = past + 1
end
if unseen then
  local given = {}
  for i = 2, #deliveries, 2 do given[#given + 1] = deliveries[i] end
  for i, score in ipairs(fences_of(given, token)) do answer[5][i] = int(score) end
end
redis.call('ZCARD', held_key)
if consumer[EXPIRES] <= now then redis.call('ZCARD', base .. ':expiries') end
check_types()

-- Every key that could have a wrong type was read: from here on the script writes.
if ARGV[5] == '1' and many == 0 then
  ticket = ticket + 1
  allow_at_maxmemory()  -- a waiting consumer will free memory
  if redis.call('ZADD', base .. ':waiting', 'NX', ticket, token) == 1 then changed = true end
  answer[2] = redis.call('ZRANK', base .. ':waiting', token)
else
  redis.call('ZREM', base .. ':waiting', token)  -- as the first write, it lets the others succeed at maxmemory
end

if #sources > 0 then
  each_part(deliveries, function(...) redis.call('ZADD', held_key, ...) end)
  store()
  local taken = at - 1
  for _, source in ipairs(sources) do
    local lane, off = source[1], math.min(source[2], taken)
    redis.call('LTRIM', base .. ':ready:' .. lane, off, -1)
    sizes[lane], taken = sizes[lane] - off, taken - off
    if sizes[lane] == 0 then remove_lane(lane) end
  end
  add_to_counter(RECEIVED, many)
  if quarantined then drain_token = '' end
  if many > 0 then answer[5][1] = int(next_fence(many)) end
  changed = true
end
if consumer[EXPIRES] <= now then  -- expired, but its messages were not reclaimed: any command is a heartbeat
  consumer[EXPIRES] = now + consumer[TTL] * 1000
  put_consumer(token, consumer)
end

if (sizes[QUARANTINE] or 0) > 0 and (drain_token == '' or drain_token == token or drain_until <= now) then
  answer[4] = 1
  if drain_token ~= token or drain_until <= now then
    drain_token, drain_until, changed = token, now + DRAIN_US, true
  end
end
local left = 0
for i = 9, past_lanes - 1 do left = left + (sizes[ARGV[i]] or 0) end
wake_waiting(left)
answer[3] = due_ms()
if changed then save() end
publish_wakeups()
return answer
