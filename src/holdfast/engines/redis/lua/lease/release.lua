-- Release the lease and offer it to the next waiter, in one step. A second copy of the command gets the same answer.
--
-- KEYS[1]  record
-- ARGV[3]  token
-- ARGV[4]  options  usually empty; otherwise 1 to leave a tombstone or 0, then the token of the waiter to prefer, if any
--
-- Returns  1 | {'not held', reason, detail}
--
-- Twin of rules/lease.py: release.

--@include lease/record.lua
local token = ARGV[3]
freeing = true
if holder_token == token and expires > now and not offered and ARGV[4] == '' then
  if waiting == 0 then
    holder_token, last = nil, token
    --@inline lease/write.lua
    return 1
  elseif not record_only then
    --@inline lease/hand_over.lua
  end
end

if record_only then return { err = 'TRYAGAIN the waiting line of this name is moving' } end

--@include lease/waiting_line.lua
--@include lease/tombstones.lua
--@include lease/commit.lua
--@const RELEASED = rules.lease.RELEASED
--@const TOMBSTONE_US = rules.lease.TOMBSTONE_US
advance()
if holder_token ~= token then
  local already_released = token == last
  commit()
  return already_released and 1 or not_held(token)
end

last = token
free()
if string.sub(ARGV[4], 1, 1) == '1' then add_tombstone(token, TOMBSTONE_US, RELEASED, '') end
local next_token = string.sub(ARGV[4], 2)
if next_token ~= '' and place_of(next_token) then offer(next_token) else offer_first() end
commit()
return 1
