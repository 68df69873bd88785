-- The record of a queue. Most scripts of a queue begin with this text.
--
-- KEYS[1]  the name's own key, as in lease/record.lua; all keys of the queue begin with it and share its slot. The queue's
--          record is at KEYS[1] and `:queue`: fence, number, ticket, checked_us, next_check_us, drain_token,
--          drain_until_us, lanes, counts. The other keys begin with that one:
--            :messages      hash        entry -> text, see queue/message.lua; all messages except dead letters
--            :ready:<lane>  list        entries, the next to deliver first; :ready:! is the quarantine
--            :delayed       sorted set  entry by the time at which it is due
--            :held:<token>  sorted set  entry by its fence, of one consumer; the fence is the time of the delivery
--            :heads         hash        key -> entry of the first message of the key, a space, and the token that holds it
--            :behind        sorted set  the other messages of a key: entry by its number
--            :key_lines     sorted set  their order: `#key:`, key, entry; the entries of a key are together, in order
--            :consumers     hash        token -> client, holder, label, fence, ttl_ms, since_us, expires_us, blame,
--                                       keeps_messages, announce_expiry
--            :expiries      sorted set  token by expires_us
--            :alive:<token> string      one per consumer that announces its expiry; it expires with the session
--            :waiting       sorted set  waiting consumers: token by ticket
--            :dead          hash        dead letters: id -> text, see queue/dead_letter_order.lua
--            :dead_order    sorted set  positions of dead letters, in their order
--            :dedup:<key>   string      one per deduplication key, which expires: id
--            :published     sorted set  token of a publish by the end of its memory; it expires a while after the last one
--            :result:<token> string     one per redrive, purge, or publish with a duplicate, which expires: ids
-- KEYS[2]  in a cluster only, and never stored: as in lease/record.lua
-- ARGV[1]  client     the caller: the channel of its wake-ups
-- ARGV[2]  memory_ms  how long an empty queue is remembered after its last use
--
-- Returns  nothing; the command that follows does.
--
-- Twin of rules/queue/state.py: QueueState.

--@const STORED_FENCE_MAX = rules.lease_record.STORED_FENCE_MAX
--@const QUEUES = commands.queue_admin.QUEUES
--@const QUARANTINE = commands.queue.QUARANTINE
local base = KEYS[1] .. ':' .. QUEUES
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local fence, number, ticket, checked, next_check, drain_token, drain_until, lanes, counts = 0, 0, 0, 0, 0, '', 0, {}, {}
local packed = redis.call('GET', base)
if packed then
  fence, number, ticket, checked, next_check, drain_token, drain_until, lanes, counts = cmsgpack.unpack(packed)
  -- As in lease/record.lua.
  if not (fence >= 0 and fence <= STORED_FENCE_MAX and number >= 0 and number <= STORED_FENCE_MAX and ticket >= 0
    and checked >= 0 and next_check >= 0 and drain_token >= '' and drain_until >= 0 and #lanes >= 0)
    or type(lanes) ~= 'table' or type(counts) ~= 'table' then
    return { err = 'CORRUPT the record has an impossible value' }
  end
end

local function int(value) return string.format('%.0f', value) end

-- Return the time until the next delay ends, rounded up; 0 if no message is delayed.
local function due_ms()
  local soonest = redis.call('ZRANGE', base .. ':delayed', 0, 0, 'WITHSCORES')
  return soonest[2] and math.max(1, math.ceil((soonest[2] - now) / 1000)) or 0
end
