-- Read the record of one name. Every script begins with this text.
--
-- KEYS[1]  record  string, packed: fence, last, waiting, buried, ticket, kept; then, if somebody holds: token, client,
--                  held, ttl_ms, since_us, expires_us, offered, owner. One text is read and written faster than a hash
--                  of as many fields, and its expiry comes with the same command. The other keys of the name are made
--                  from this one and share its slot:
--                    :q  queue  sorted set  token by ticket
--                    :w  seats  hash        token -> client, ttl_ms, since_us, owner, pops
--                    :m  marks  sorted set  client by the end of its mark
--                    :d: tombs  string      one key per ended token, which expires by itself: why, detail
--                    :k: bells  list        one key per waiter that pops, for the moment of its offer
-- KEYS[2]  in a cluster only, and never there: so that it refuses commands on a slot that is on its way to another server.
--          If it is the record once more, the slot is on its way: the record is where this runs, and the other keys of
--          the name may be elsewhere. What can be decided from the record alone is decided; the rest is refused.
-- ARGV[1]  client     who asks: the channel on which it hears its wake-ups
-- ARGV[2]  memory_ms  how long a name is remembered after its last use
--
-- Returns  nothing by itself; the command that follows does.
--
-- All that is known stands in plain locals, and what only a contended name needs is in lease/waiting_line.lua: building tables and
-- functions would cost more than all else together.

local base, me = KEYS[1], ARGV[1]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local fence, last, waiting, buried, ticket, kept = 0, '', 0, 0, 0, 0
local holder, client, held, ttl, since, expires, offered, owner
local packed = redis.call('GET', base)
if packed then
  fence, last, waiting, buried, ticket, kept, holder, client, held, ttl, since, expires, offered, owner =
    cmsgpack.unpack(packed)
end
local alone = KEYS[2] == base
local OFFER_US = 1000000  -- how long an offer stands, at most
local freeing = false  -- whether this must pass at maxmemory

