-- Read the record of one name. Every script begins with this text.
--
-- KEYS[1]  record  string, packed: fence, last, waiting, buried, ticket; then, if somebody holds: token, client, held,
--                  ttl_ms, since_us, expires_us, offered, owner. One text is read and written faster than a hash of as
--                  many fields, and its expiry comes with the same command. The other keys of the name are made from
--                  this one and share its slot:
--                    :q  queue  sorted set  token by ticket
--                    :w  seats  hash        token -> client, ttl_ms, since_us, owner
--                    :m  marks  sorted set  client by the end of its mark
--                    :d: tombs  string      one key per ended token, which expires by itself: why, detail
-- ARGV[1]  client      who asks
-- ARGV[2]  memory_ms   how long a name is remembered after its last use
-- ARGV[3]  mark_ms     how long a sign of life lasts
-- ARGV[4]  channel     prefix of the wake-up channels
--
-- Returns  nothing by itself; the command that follows does.
--
-- `quiet` is the common case: nobody waits, nothing is offered, no token was ended by force or undone. There, a command
-- needs none of the functions in queue.lua, which cost more than all else together.

local base, me = KEYS[1], ARGV[1]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local fence, last, waiting, buried, ticket, holder = 0, '', 0, 0, 0, nil
local packed = redis.call('GET', base)
if packed then
  local token, client, held, ttl, since, expires, offered, owner
  fence, last, waiting, buried, ticket, token, client, held, ttl, since, expires, offered, owner = cmsgpack.unpack(packed)
  if token then
    holder = { token = token, client = client, fence = held, ttl = ttl, since = since, expires = expires,
      offered = offered, owner = owner }
  end
end
local quiet = waiting == 0 and buried <= now and not (holder and holder.offered)
local freeing = false  -- whether this must pass at maxmemory

