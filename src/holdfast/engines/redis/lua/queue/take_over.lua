-- The first message of a key, for whoever asks, if nobody can vouch for it.
--
-- KEYS[1]  the name's own key
-- ARGV[3]  token
-- ARGV[4]  key
-- ARGV[5]  attempts_max
-- ARGV[6]  dead_max
--
-- Returns  {'taken', …} as queue/receive.lua | {'elsewhere', place, label, fence} | {'unknown consumer'}
--
-- Same law as rules/queue/consumers.py: take_over. In a long lane it takes as long as the way to the message.

--@include queue/state.lua
--@include queue/messages.lua
--@include queue/blame.lua
local token, key, LATE_US = ARGV[3], ARGV[4], 1000000
if not living(token) then return { 'unknown consumer' } end
local entry, holder = string.match(redis.call('HGET', base .. ':first', key) or '', '^(%S+) ?(.*)$')
local text = entry and redis.call('HGET', base .. ':m', entry)
if entry and not text then  -- somebody has deleted it: whoever stands behind it comes first now
  local ready = follow(key)
  check()
  make_way()
  store()
  ring(ready)
  save()
  wake()
end
if not text then return { 'elsewhere', '', '', '0' } end

local next_ms = due_ms()
local function taken(given, fenced, words) return { 'taken', -1, next_ms, 0, { int(fenced) }, {}, given, words } end

-- Whether its silence may be the server's own: nobody has looked for long, or all were given time for that.
local function forgiven(ttl)
  if looked == 0 then return false end
  if now < look then return now < looked or look - looked >= math.floor(ttl / 2) end
  return now - look > math.max(math.floor(ttl / 3), LATE_US)
end

local mine, message, lane, size, who = base .. ':h:' .. token, read(entry, text), nil, nil, nil
local before = holder ~= '' and redis.call('ZSCORE', base .. ':h:' .. holder, entry) or 0
if holder == token then return taken(entry, before, text) end  -- asked for before
if holder == '' then
  if redis.call('ZSCORE', base .. ':due', entry) then return { 'elsewhere', 'delayed', '', '0' } end
  lane = lane_of(message)
  size = redis.call('LLEN', base .. ':s:' .. lane)
else
  who = member(holder)
  if who and not who[FALLEN] and (who[ENDS] > now or forgiven(who[TTL] * 1000)) then
    return { 'elsewhere', 'held', who[LABEL], int(before) }
  end
  count('crashed', 1)
end

local given, words, ready = nil, nil, 0
if who then
  falls(holder, who)
  redis.call('ZCARD', base .. ':ends')
end
if who and not mourned(message, who, before, tonumber(ARGV[5])) then
  count('dead_lettered', 1)
  ready = follow(key)
  redis.call('ZCARD', base .. ':died')
else
  words = text_of(message)
  given = new_entry(words, key)
  lead(key, given .. ' ' .. token)
  count('received', 1)
end
redis.call('ZCARD', mine)
check()

make_way()
store()
if lane then
  redis.call('LREM', base .. ':s:' .. lane, 1, entry)
  if size <= 1 then forget_lane(lane) end
else
  redis.call('ZREM', base .. ':h:' .. holder, entry)
end
redis.call('HDEL', base .. ':m', entry)
if who then put_member(holder, who) end
close_graves(tonumber(ARGV[6]))
local fenced = given and next_fence(1)
if given then
  redis.call('ZADD', mine, fenced, given)
  redis.call('ZREM', base .. ':hungry', token)
end
ring(ready)
save()
wake()
return given and taken(given, fenced, words) or { 'elsewhere', 'dead', '', '0' }
