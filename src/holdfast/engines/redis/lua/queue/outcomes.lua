-- Record the outcomes of messages: each by itself, and only if this consumer holds the message.
--
-- KEYS[1]  the name's own key
-- ARGV[3]  token
-- ARGV[4]  dead_max  how many dead letters are stored; 0 for all
-- ARGV[5]  resent    '1' if an earlier copy may have recorded the outcomes
-- ARGV[6…] outcomes  for each: entry; and empty for `ack`, or `kind delay_ms #reason`, a new line, reason, error
--
-- Returns  {'outcomes', lost entry…}
--
-- Twin of rules/queue/messages.py: record_outcomes.

--@include queue/state.lua
--@include queue/consumer_read.lua
--@include queue/text.lua
--@include queue/texts.lua
--@include queue/message.lua
--@include queue/write.lua
--@include queue/requeue.lua
--@include queue/failures.lua
--@include queue/wake.lua
--@const ACK = commands.queue.ACK
--@const RETRY = commands.queue.RETRY
--@const RELEASE = commands.queue.RELEASE
--@const REJECT = commands.queue.REJECT
--@const VERIFY = commands.queue.VERIFY
--@const ACKED = rules.queue.state.ACKED
--@const RETRIED = rules.queue.state.RETRIED
--@const RELEASED = rules.queue.state.RELEASED
--@const DEAD_LETTERED = rules.queue.state.DEAD_LETTERED
--@const LOST = rules.queue.state.LOST
local COUNTERS = { [ACK] = ACKED, [RETRY] = RETRIED, [RELEASE] = RELEASED, [REJECT] = DEAD_LETTERED }
local arguments, token = ARGV, ARGV[3]
local held, consumer = base .. ':held:' .. token, live_consumer(token)
local entries, needed, found, lost, ended, over, ready = {}, {}, {}, { 'outcomes' }, {}, 0, 0
-- Read the text of every message that is not simply acked, and of every message with a key: others may be behind it.
for i = 6, #arguments, 2 do
  local entry = arguments[i]
  entries[(i - 4) / 2] = entry
  if (has_key(entry) or arguments[i + 1] ~= '') and string.sub(arguments[i + 1], 1, #VERIFY) ~= VERIFY then
    needed[#needed + 1] = entry
  end
end
local fences = consumer and fences_of(entries, token) or {}
if consumer then
  for i, text in ipairs(texts_of(needed)) do found[needed[i]] = text end
end

local handled, counted = {}, { [ACK] = 0, [RETRY] = 0, [RELEASE] = 0, [REJECT] = 0 }
for i, entry in ipairs(entries) do
  local outcome, kind, holds = arguments[5 + 2 * i], ACK, fences[i] and not handled[entry]
  local message, wait_ms, reason, failure
  if outcome ~= '' then
    local length, at
    kind, wait_ms, length, at = string.match(outcome, '^(%a+) (%d+) (%d+)\n()')
    reason, failure = string.sub(outcome, at, at + length - 1), string.sub(outcome, at + length)
    wait_ms = tonumber(wait_ms)
  end
  if holds and kind ~= VERIFY and (kind ~= ACK or has_key(entry)) then
    holds = found[entry]
    message = holds and read(entry, holds)
  end
  if not holds then
    lost[#lost + 1] = entry
  elseif kind ~= VERIFY then
    handled[entry] = true
    over = over + 1
    ended[over] = entry
    counted[kind] = counted[kind] + 1
    if kind == ACK then
      if message then ready = ready + free_key(message.key) end
    elseif kind == RELEASE then
      ready = ready + make_ready(message, wait_ms)
    else
      -- The consumer survived the message, so it does not belong in quarantine.
      add_failure(message, consumer[LABEL], failure ~= '' and failure or reason, 1, 0)
      message.crashes = 0
      if kind == RETRY then
        ready = ready + make_ready(message, wait_ms)
      else
        add_dead_letter(message, reason)
        ready = ready + free_key(message.key)
      end
    end
  end
end

if #dead_letters > 0 then redis.call('ZCARD', base .. ':dead_order') end
check_types()
if #ended > 0 or #lost > 1 then
  allow_at_maxmemory()
  store()
  store_dead_letters(tonumber(ARGV[4]))
  each_part(ended, function(...)
    redis.call('ZREM', held, ...)
    redis.call('HDEL', base .. ':messages', ...)
  end)
  for kind, counter in pairs(COUNTERS) do add_to_counter(counter, counted[kind]) end
  -- No other client takes a message from a live consumer, so an earlier copy recorded the missing outcomes.
  if ARGV[5] == '0' or not consumer then add_to_counter(LOST, #lost - 1) end
  wake_waiting(ready)
  save(not consumer)
  publish_wakeups()
end
return lost
