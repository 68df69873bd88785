-- Free the lease and offer it on, in one step; the same token may say so twice.
--
-- KEYS[1]  record
-- ARGV[3]  token
-- ARGV[4]  how    empty; or, for the seldom cases, 1 to refuse the token from now on, else 0, and then the token of the
--                 waiter that is to have it next
--
-- Returns  1 | {'not held', why, detail}
--
-- Same law as rules/lease.py: release.

--@include lease/record.lua
local token = ARGV[3]
freeing = true
if holder == token and expires > now and not offered and ARGV[4] == '' then
  if waiting == 0 then
    holder, last = nil, token
    --@include lease/write.lua
    return 1
  elseif not alone then
    --@include lease/hand_over.lua
  end
end

if alone then return { err = 'TRYAGAIN the queue of this name is on its way' } end

--@include lease/waiting_line.lua
settle()
if holder ~= token then
  local again = token == last
  commit()
  return again and 1 or not_held(token)
end

last = token
free()
if string.sub(ARGV[4], 1, 1) == '1' then entomb(token, TOMB_US, 'released', '') end
local heir = string.sub(ARGV[4], 2)
if heir ~= '' and place_of(heir) then offer(heir) else offer_first() end
commit()
return 1
