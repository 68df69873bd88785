-- A client says that it lives, and its waiters with it. An offer that was made but not heard is told again.
--
-- KEYS[1]  record
-- ARGV     nothing more
--
-- Returns  {'marked', remaining_ms, token}; 0 if nobody holds; the token of a waiter of the caller, if it is offered
--
-- Same law as rules/lease.py: mark.

--@include lease/record.lua
--@include lease/waiting_line.lua
settle()
if not holder then
  if queued_before then commit() end
  return { 'marked', 0, '' }
end

marked = true
commit()
local mine = offered and client == me
if mine and held == fence_before then redis.pcall('PUBLISH', me, holder) end
return { 'marked', math.ceil((expires - now) / 1000), mine and holder or '' }
