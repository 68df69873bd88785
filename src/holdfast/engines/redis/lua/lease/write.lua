-- Write the record, with its expiry.
--
-- KEYS[1]  record
-- ARGV[2]  memory_ms
--
-- Returns  nothing
--
-- The keys of the waiting line expire with the record. The script sets their expiry to twice the time that they are needed,
-- and sets it again only when less than the needed time is left. `line_until` is the time at which they expire; 0 if one of
-- the keys is new.

local ends = tombstones_until > now and tombstones_until or now
if holder_token and expires > ends then ends = expires end
local keep_ms = math.ceil((ends - now) / 1000) + ARGV[2]
if (waiting > 0 or offered) and not record_only and line_until < now + keep_ms * 1000 then
  line_until = now + 2 * keep_ms * 1000
  redis.call('PEXPIRE', base .. ':line', 2 * keep_ms)
  redis.call('PEXPIRE', base .. ':waiters', 2 * keep_ms)
  redis.call('PEXPIRE', base .. ':heartbeats', 2 * keep_ms)
end
local record
if holder_token then
  record = cmsgpack.pack(fence, last, waiting, tombstones_until, ticket, line_until, holder_token, client, held, ttl,
    since, expires, offered, holder)
else
  record = cmsgpack.pack(fence, last, waiting, tombstones_until, ticket, line_until)
end
if freeing then
  -- At maxmemory the first write of a script must be one that frees memory; after it the others succeed.
  local written = redis.pcall('SET', base, record, 'PX', keep_ms)
  if written.err then
    if record_only then return written end  -- while the slot moves, a deleted record cannot be written here again
    redis.call('DEL', base)
    redis.call('SET', base, record, 'PX', keep_ms)
  end
else
  redis.call('SET', base, record, 'PX', keep_ms)
end
