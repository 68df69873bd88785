-- Record that a client is alive, and its waiters with it. Wake those of them again that have not confirmed their offers.
--
-- KEYS[1]  the name's own key
-- ARGV     nothing more
--
-- Returns  {'heartbeat', remaining_ms, token, all_ms, near}: 0 if no item will come back; the token of a waiter of the caller
--          that has an offer, or empty; 1 if the caller has a waiter near the front
--
-- Twin of rules/pool.py: heartbeat.

--@include pool/state.lua
--@include pool/waiting_line.lua
--@include pool/advance.lua
--@include pool/times.lua
--@include pool/commit.lua
--@const HEARTBEAT_MS = rules.trust.HEARTBEAT_MS
if contended_before then allow_at_maxmemory() end  -- waiters keep their places at maxmemory too
advance()
local just_offered, first = {}, nil
for _, wakeup in ipairs(wakeups) do just_offered[wakeup[2]] = true end
if offers > 0 then
  local offered = redis.call('HGETALL', base .. ':offers')
  for i = 1, #offered, 2 do
    local token, client = offered[i], offered[i + 1]
    if client == caller then
      if not just_offered[token] then wake(client, token, false) end
      if not first or token < first then first = token end
    end
  end
end
local near = first ~= nil
if waiting > 0 or offers > 0 then
  record_heartbeat(HEARTBEAT_MS)
  --@inline lease/near.lua
end
local answer = { 'heartbeat', next_ms(), first or '', all_ms(), near and 1 or 0 }
commit()
return answer
