-- Return the holder and the waiting line. Changes nothing.
--
-- KEYS[1]  record
-- ARGV     nothing more
--
-- Returns  {'lease', fence, offered, token, holder, held, since_ms, remaining_ms, then token, holder, since_ms of each
--          waiter in order}; the token is empty if there is no holder
--
-- Twin of rules/lease.py: show.

--@include lease/record.lua
--@include lease/waiting_line.lua
advance()
read_line()
local answer = { 'lease', int(fence), 0, '', '', '0', 0, 0 }
if holder_token then
  answer = { 'lease', int(fence), offered and 1 or 0, holder_token, holder, int(held), math.floor((now - since) / 1000),
    math.floor(math.max(0, expires - now) / 1000) }
end
local function add(token)
  if is_removed[token] then return end
  answer[#answer + 1] = token
  answer[#answer + 1] = waiter[token][4]
  answer[#answer + 1] = math.floor((now - waiter[token][3]) / 1000)
end
for _, token in ipairs(order) do add(token) end
for _, token in ipairs(joined) do add(token) end
return answer
