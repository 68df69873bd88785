-- Declare a consumer dead, and decide which of its messages takes the blame.
--
-- KEYS[1], ARGV[1…2]  as queue/state.lua
--
-- Returns  nothing; it defines the functions declare_dead and after_consumer_death.
--
-- Twin of rules/queue/consumers.py: _declare_dead, _after_consumer_death. The fence of a message is the time of its
-- delivery.

--@const BLAME_WINDOWS_PER_TTL = rules.queue.state.BLAME_WINDOWS_PER_TTL
--@const BLAME_ONE = rules.queue.state.BLAME_ONE
--@const BLAME_UNCLEAR = rules.queue.state.BLAME_UNCLEAR
--@const CONSUMER_DIED = rules.queue.state.CONSUMER_DIED
--@const ATTEMPTS_USED_UP = rules.queue.state.ATTEMPTS_USED_UP
-- Return the time since which a received message may have killed the consumer; -1 means any of them.
local function blame_start(consumer)
  if not consumer[KEEPS_MESSAGES] then return -1 end
  local ttl = consumer[TTL] * 1000
  return consumer[EXPIRES] - ttl - math.floor(ttl / BLAME_WINDOWS_PER_TTL)
end

-- Decide the blame from the messages that the consumer holds now; later, some of them are gone.
local function declare_dead(token, consumer)
  if consumer[BLAME] then return end
  local newest, start = redis.call('ZRANGE', base .. ':held:' .. token, -2, -1, 'WITHSCORES'), blame_start(consumer)
  local new = 0
  for i = 2, #newest, 2 do
    if tonumber(newest[i]) >= start then new = new + 1 end
  end
  consumer[BLAME] = new == 1 and BLAME_ONE or BLAME_UNCLEAR
end

-- Return the message after the death of its consumer; false if it became a dead letter.
local function after_consumer_death(message, consumer, received, attempts_max)
  local new = tonumber(received) >= blame_start(consumer)
  local alone = consumer[BLAME] == BLAME_ONE or lane_of(message) == QUARANTINE and not consumer[KEEPS_MESSAGES]
  local blamed = new and alone
  add_failure(message, consumer[LABEL], CONSUMER_DIED, blamed and 1 or 0, blamed and 0 or 1)
  if not new then message.crashes = 0 end
  if not blamed or message.attempts < attempts_max then return message end
  add_dead_letter(message, ATTEMPTS_USED_UP)
  return false
end
