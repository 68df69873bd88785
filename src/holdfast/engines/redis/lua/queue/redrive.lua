-- Turn these dead letters into messages again, or delete them.
--
-- KEYS[1]  the name's own key
-- ARGV[3]  operation  `purge`, `purge positions`, `redrive`, or `reset` to redrive them without their record of attempts
-- ARGV[4]  token      of this command; empty for none
-- ARGV[5…] ids, or positions
--
-- Returns  {'dead letters removed', id…}
--
-- Twin of rules/queue/dead_letters.py: redrive, purge. It ends when the dead letters that it has read have PAGE_BYTES.

--@include queue/state.lua
--@include queue/consumer_read.lua
--@include queue/message.lua
--@include queue/write.lua
--@include queue/requeue.lua
--@include queue/dead_letter_order.lua
--@include queue/wake.lua
--@const PAGE_BYTES = commands.queue.PAGE_BYTES
--@const RESULT_MEMORY_MS = rules.queue.messages.RESULT_MEMORY_MS
--@const REDRIVEN = rules.queue.state.REDRIVEN
--@const PURGED = rules.queue.state.PURGED
local result_key = ARGV[4] ~= '' and base .. ':result:' .. ARGV[4]
local before = result_key and redis.call('GET', result_key)
if before then return { 'dead letters removed', unpack(cmsgpack.unpack(before)) } end

local operation, removed, ids, seen, ready, bytes = ARGV[3], { 'dead letters removed' }, {}, {}, 0, 0
local purges = operation == 'purge' or operation == 'purge positions'
for i = 5, #ARGV do
  local id = ARGV[i]
  if operation == 'purge positions' then
    if not seen[id] and redis.call('ZSCORE', base .. ':dead_order', id) then
      seen[id], removed[#removed + 1], ids[#ids + 1], old_positions[#old_positions + 1] = true, id, string.sub(id, 22), id
    end
  elseif bytes >= PAGE_BYTES then
    break
  end
  local dead_letter = operation ~= 'purge positions' and not seen[id] and redis.call('HGET', base .. ':dead', id)
  if dead_letter then
    seen[id], removed[#removed + 1], ids[#ids + 1], bytes = true, id, id, bytes + #dead_letter
    remove_position(id, dead_letter)
    if not purges then
      local reason, at = string.match(dead_letter, '^%d+ (%d+)\n()')
      local message = read(id, string.sub(dead_letter, at + reason))
      message.crashes = 0
      if operation == 'reset' then
        message.attempts, message.first_consumer, message.last_consumer, message.last_error = 0, '', '', ''
      end
      if message.key and (heads[message.key] or heads_of({ message.key })[1]) then
        add_behind(text_of(message), message.key)
      else
        ready = ready + make_ready(message, 0)
      end
    end
  end
end
if #removed == 1 then return removed end
redis.call('ZCARD', base .. ':dead_order')
check_types()
if purges then allow_at_maxmemory() end
store()
redis.call('HDEL', base .. ':dead', unpack(ids))
redis.call('ZREM', base .. ':dead_order', unpack(old_positions))
if result_key then redis.call('SET', result_key, cmsgpack.pack({ unpack(removed, 2) }), 'PX', RESULT_MEMORY_MS) end
add_to_counter(purges and PURGED or REDRIVEN, #removed - 1)
wake_waiting(ready)
save(true)
publish_wakeups()
return removed
