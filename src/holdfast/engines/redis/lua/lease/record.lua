-- Read the record of one name. Most scripts begin with this text.
--
-- KEYS[1]  record  string, packed: fence, last, waiting, tombstones_until, ticket, line_until; then, if there is a holder:
--                  token, client, fence, ttl_ms, since_us, expires_us, offered, holder. One string is read and written
--                  faster than a hash of as many fields, and the same command sets its expiry. The other keys of the
--                  name begin with this one and share its slot:
--                    :line        sorted set  waiting line: token by ticket
--                    :waiters     hash        token -> client, ttl_ms, since_us, holder, pops
--                    :heartbeats  sorted set  client by the end of its heartbeat
--                    :ended:      string      tombstones: one key per ended token, which expires: reason, detail
--                    :wakeup:     list        one key per waiter that pops, while its offer lasts
-- KEYS[2]  in a cluster only, and never stored: its presence makes the cluster refuse commands on a slot that is moving
--          to another server. If it equals KEYS[1], the slot is moving: the record is on this server, and the other keys
--          of the name may be on the other server. The script then decides only what the record alone can decide.
-- ARGV[1]  client     the caller: the channel of its wake-ups
-- ARGV[2]  memory_ms  how long a name is remembered after its last use
--
-- Returns  nothing; the command that follows does.
--
-- The fields are plain locals, and lease/waiting_line.lua holds the parts that only a contended name needs, because
-- building tables and functions would cost more than everything else together.

--@const FENCE_MAX = rules.lease_record.FENCE_MAX
--@const STORED_FENCE_MAX = rules.lease_record.STORED_FENCE_MAX
local base, caller = KEYS[1], ARGV[1]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local fence, last, waiting, tombstones_until, ticket, line_until = 0, '', 0, 0, 0, 0
local holder_token, client, held, ttl, since, expires, offered, holder
local packed = redis.call('GET', base)
if packed then
  fence, last, waiting, tombstones_until, ticket, line_until, holder_token, client, held, ttl, since, expires, offered,
    holder = cmsgpack.unpack(packed)
  -- Another program may have written here. A comparison with a value of another type ends the script with an error.
  if not (fence >= 0 and fence <= STORED_FENCE_MAX and waiting >= 0 and tombstones_until >= 0 and ticket >= 0
    and line_until >= 0 and last >= '') or holder_token and not (holder_token > '' and client >= '' and held >= 0
    and held <= fence and ttl >= 0 and since >= 0 and expires >= 0 and expires <= FENCE_MAX and holder >= '') then
    return { err = 'CORRUPT the record has an impossible value' }
  end
end
local record_only = KEYS[2] == base
local freeing = false  -- whether the writes must succeed at maxmemory

