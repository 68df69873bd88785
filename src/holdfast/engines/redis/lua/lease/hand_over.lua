-- Hand the lease over in the common case: every waiting client is alive, and the first waiter is next.
--
-- KEYS[1]  record
-- ARGV     as in lease/release.lua
--
-- Returns  1; or nothing in any other case: then nothing has been written, and lease/waiting_line.lua decides
--
-- Twin of rules/lease.py: release. The next holder waits while this runs, and building the tables and functions of
-- lease/waiting_line.lua would take as long as everything else in the script.

--@const OFFER_MAX_US = rules.lease.OFFER_MAX_US
--@const DOUBT_MS = rules.trust.DOUBT_MS
local line_key, waiters_key = base .. ':line', base .. ':waiters'
local next_token = redis.call('ZRANGE', line_key, 0, 0)[1]
local waiter = next_token and redis.call('HGET', waiters_key, next_token)
if waiter and not redis.call('ZRANGEBYSCORE', base .. ':heartbeats', '-inf', now + DOUBT_MS * 1000, 'LIMIT', 0, 1)[1] then
  local _, pops
  holder_token, last, waiting = next_token, token, waiting - 1
  client, ttl, _, holder, pops = cmsgpack.unpack(waiter)
  fence = math.max(fence + 1, now)
  held, since, expires, offered = fence, now, now + math.min(ttl * 1000, OFFER_MAX_US), true
  redis.call('ZREM', line_key, next_token)
  redis.call('HDEL', waiters_key, next_token)
  --@inline lease/write.lua
  --@inline lease/wake.lua
  return 1
end
