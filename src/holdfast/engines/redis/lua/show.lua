-- Who holds and who waits. Changes nothing.
--
-- KEYS[1]  record
-- ARGV     nothing more
--
-- Returns  {'standing', fence, offered, token, owner, held, since_ms, remaining_ms, then token, owner, since_ms of each
--          waiter in order}; the token is empty if nobody holds
--
-- Same law as rules/lease.py: show.

--@include record.lua
--@include queue.lua
settle()
read_queue()
local answer = { 'standing', int(fence), 0, '', '', '0', 0, 0 }
if holder then
  answer = { 'standing', int(fence), holder.offered and 1 or 0, holder.token, holder.owner, int(holder.fence),
    math.floor((now - holder.since) / 1000), math.floor(math.max(0, holder.expires - now) / 1000) }
end
for _, token in ipairs(order) do
  answer[#answer + 1] = token
  answer[#answer + 1] = seat_of[token].owner
  answer[#answer + 1] = math.floor((now - seat_of[token].since) / 1000)
end
return answer
