-- Read the records of consumers.
--
-- KEYS[1], ARGV[1…2]  as queue/state.lua
--
-- Returns  nothing; it defines the numbers of the fields and the functions get_consumer and live_consumer.
--
-- Twin of rules/queue/messages.py: live_consumer.

local CLIENT, HOLDER, LABEL, FENCE, TTL, SINCE, EXPIRES, BLAME, KEEPS_MESSAGES, ANNOUNCE_EXPIRY =
  1, 2, 3, 4, 5, 6, 7, 8, 9, 10

local function get_consumer(token)
  local text = redis.call('HGET', base .. ':consumers', token)
  return text and { cmsgpack.unpack(text) }
end

-- Return the consumer if it was not declared dead; false or nothing otherwise.
local function live_consumer(token)
  local consumer = get_consumer(token)
  return consumer and not consumer[BLAME] and consumer
end
