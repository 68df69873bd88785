-- Free the item or let it cool, and offer it to the next waiter, in one step. A second copy of the command gets the same
-- answer.
--
-- KEYS[1]  the name's own key
-- ARGV[4]  item
-- ARGV[5]  token
-- ARGV[6]  cooldown_ms
-- ARGV[7]  tombstone    1 to leave a tombstone
--
-- Returns  1 | {'not held', reason, detail}
--
-- Twin of rules/pool.py: return_item.

--@include pool/state.lua
--@include pool/waiting_line.lua
--@include pool/advance.lua
--@include pool/tombstones.lua
--@include pool/cool.lua
--@include pool/commit.lua
--@const RELEASED = rules.lease.RELEASED
local name, token = ARGV[4], ARGV[5]
allow_at_maxmemory()
advance()
local item, unreadable = load(name)
if unreadable then
  commit()
  return unreadable
end
if not item or not taken(item) or item[TOKEN] ~= token then
  commit()
  return item and item[LAST] == token and 1 or not_held(token)
end

if ARGV[7] == '1' then add_tombstone(token, TOMBSTONE_US, RELEASED, '') end
item[LAST] = token
cool_or_free(name, item, tonumber(ARGV[6]))
commit()
return 1
