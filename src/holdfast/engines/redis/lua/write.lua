-- Write the record, with its expiry.
--
-- KEYS[1]  record
-- ARGV[2]  memory_ms
--
-- Returns  nothing; `keep_ms` is how long the name is kept.

local ends = buried > now and buried or now
if holder and holder.expires > ends then ends = holder.expires end
local keep_ms = math.ceil((ends - now) / 1000) + ARGV[2]
local record
if holder then
  record = cmsgpack.pack(fence, last, waiting, buried, ticket, holder.token, holder.client, holder.fence, holder.ttl,
    holder.since, holder.expires, holder.offered, holder.owner)
else
  record = cmsgpack.pack(fence, last, waiting, buried, ticket)
end
if freeing then
  -- At maxmemory the first write of a script must be one that frees; after it the others pass.
  if redis.pcall('SET', base, record, 'PX', keep_ms).err then
    redis.call('DEL', base)
    redis.call('SET', base, record, 'PX', keep_ms)
  end
else
  redis.call('SET', base, record, 'PX', keep_ms)
end
