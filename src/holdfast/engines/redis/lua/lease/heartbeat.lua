-- Record that a client is alive, and its waiters with it. If one of them has not confirmed its offer, wake it again.
--
-- KEYS[1]  record
-- ARGV     nothing more
--
-- Returns  {'heartbeat', remaining_ms, token, 0, near}: 0 if no client holds the lease; the token of the caller's waiter that
--          has the offer, or empty; 1 if the caller has a waiter near the front
--
-- Twin of rules/lease.py: waiter_heartbeat.

--@include lease/record.lua
--@include lease/waiting_line.lua
--@include lease/commit.lua
--@const HEARTBEAT_MS = rules.trust.HEARTBEAT_MS
advance()
if not holder_token then
  if contended_before then commit() end
  return { 'heartbeat', 0, '', 0, 0 }
end

heartbeat, freeing = HEARTBEAT_MS, contended_before  -- waiters keep their places at maxmemory too
commit()
local mine = offered and client == caller
if mine and held == fence_before then redis.pcall('PUBLISH', caller, holder_token) end
local near = mine
--@inline lease/near.lua
return { 'heartbeat', math.ceil((expires - now) / 1000), mine and holder_token or '', 0, near and 1 or 0 }
