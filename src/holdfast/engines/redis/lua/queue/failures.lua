-- Record failed attempts in messages, add dead letters, and drop the oldest ones beyond the maximum.
--
-- KEYS[1], ARGV[1…2]  as queue/state.lua
--
-- Returns  nothing; it defines the functions add_failure, add_dead_letter and store_dead_letters.
--
-- Twin of rules/queue/messages.py: with_failure, trim_dead_letters.

--@include queue/dead_letter_order.lua
--@const EVICTED = rules.queue.state.EVICTED
local dead_letters = {}  -- to write: id, text …

local function add_failure(message, label, failure, attempts, crashes)
  message.attempts, message.crashes = message.attempts + attempts, message.crashes + crashes
  if message.first_consumer == '' then message.first_consumer = label end
  message.last_consumer, message.last_error = label, failure
end

local function add_dead_letter(message, reason)
  local before = redis.call('HGET', base .. ':dead', message.id)
  if before then remove_position(message.id, before) end
  dead_letters[#dead_letters + 1] = message.id
  dead_letters[#dead_letters + 1] = int(now) .. ' ' .. #reason .. '\n' .. reason .. text_of(message)
end

-- Write the added dead letters, drop the oldest beyond `most` and count them; 0 keeps all.
local function store_dead_letters(most)
  if #dead_letters == 0 then return end
  local positions = {}
  for i = 1, #dead_letters, 2 do
    positions[#positions + 1] = '0'
    positions[#positions + 1] = position_of_dead_letter(now, dead_letters[i])
  end
  each_part(old_positions, function(...) redis.call('ZREM', base .. ':dead_order', ...) end)
  each_part(positions, function(...) redis.call('ZADD', base .. ':dead_order', ...) end)
  each_part(dead_letters, function(...) redis.call('HSET', base .. ':dead', ...) end)
  if most == 0 then return end
  -- A lowered maximum takes effect in steps, so that no step takes long.
  local over = math.min(redis.call('ZCARD', base .. ':dead_order') - most, PART)
  if over <= 0 then return end
  local evicted, ids = redis.call('ZRANGE', base .. ':dead_order', 0, over - 1), {}
  for i, position in ipairs(evicted) do ids[i] = string.sub(position, 22) end
  redis.call('ZREM', base .. ':dead_order', unpack(evicted))
  redis.call('HDEL', base .. ':dead', unpack(ids))
  add_to_counter(EVICTED, over)
end
