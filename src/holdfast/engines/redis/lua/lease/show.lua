-- Who holds and who waits. Changes nothing.
--
-- KEYS[1]  record
-- ARGV     nothing more
--
-- Returns  {'standing', fence, offered, token, owner, held, since_ms, remaining_ms, then token, owner, since_ms of each
--          waiter in order}; the token is empty if nobody holds
--
-- Same law as rules/lease.py: show.

--@include lease/record.lua
--@include lease/waiting_line.lua
settle()
read_queue()
local answer = { 'standing', int(fence), 0, '', '', '0', 0, 0 }
if holder then
  answer = { 'standing', int(fence), offered and 1 or 0, holder, owner, int(held), math.floor((now - since) / 1000),
    math.floor(math.max(0, expires - now) / 1000) }
end
local function add(token)
  if gone[token] then return end
  answer[#answer + 1] = token
  answer[#answer + 1] = seat[token][4]
  answer[#answer + 1] = math.floor((now - seat[token][3]) / 1000)
end
for _, token in ipairs(order) do add(token) end
for _, token in ipairs(joined) do add(token) end
return answer
