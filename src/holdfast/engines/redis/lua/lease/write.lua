-- Write the record, with its expiry.
--
-- KEYS[1]  record
-- ARGV[2]  memory_ms
--
-- Returns  nothing
--
-- The keys of the queue end with the record. Their expiry is set for twice as long as needed, and anew only when that
-- no longer does; `kept` is when it ends, 0 if one of them is new.

local ends = buried > now and buried or now
if holder and expires > ends then ends = expires end
local keep_ms = math.ceil((ends - now) / 1000) + ARGV[2]
if (waiting > 0 or offered) and not alone and kept < now + keep_ms * 1000 then
  kept = now + 2 * keep_ms * 1000
  redis.call('PEXPIRE', base .. ':q', 2 * keep_ms)
  redis.call('PEXPIRE', base .. ':w', 2 * keep_ms)
  redis.call('PEXPIRE', base .. ':m', 2 * keep_ms)
end
local record
if holder then
  record = cmsgpack.pack(fence, last, waiting, buried, ticket, kept, holder, client, held, ttl, since, expires, offered,
    owner)
else
  record = cmsgpack.pack(fence, last, waiting, buried, ticket, kept)
end
if freeing then
  -- At maxmemory the first write of a script must be one that frees; after it the others pass.
  local written = redis.pcall('SET', base, record, 'PX', keep_ms)
  if written.err then
    if alone then return written end  -- once deleted, it could not be written here again
    redis.call('DEL', base)
    redis.call('SET', base, record, 'PX', keep_ms)
  end
else
  redis.call('SET', base, record, 'PX', keep_ms)
end
