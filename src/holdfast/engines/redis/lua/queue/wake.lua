-- Wake waiting consumers.
--
-- KEYS[1], ARGV[1…2]  as queue/state.lua
--
-- Returns  nothing; it defines the functions wake_waiting and publish_wakeups.
--
-- Twin of rules/queue/messages.py: wake_waiting.

--@const BATCH_MAX = commands.queue.BATCH_MAX
local wakeups = {}  -- client, token …

-- Remove up to `most` live consumers from the waiting line, the longest waiting first, and collect their wake-ups.
local function wake_waiting(most)
  while #wakeups < 2 * most do
    local found = redis.call('ZPOPMIN', base .. ':waiting', math.min(most - #wakeups / 2, BATCH_MAX))
    if #found == 0 then return end
    for i = 1, #found, 2 do
      local consumer = get_consumer(found[i])
      if consumer and consumer[EXPIRES] > now then
        wakeups[#wakeups + 1] = consumer[CLIENT]
        wakeups[#wakeups + 1] = found[i]
      end
    end
  end
end

-- Publish the wake-ups, last and through pcall: without the right to publish, consumers wake up late and nothing else fails.
local function publish_wakeups()
  for i = 1, #wakeups, 2 do redis.pcall('PUBLISH', wakeups[i], wakeups[i + 1]) end
end
