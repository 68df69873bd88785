-- Cool an item that is not lent. A lent item is its borrower's to return.
--
-- KEYS[1]  the name's own key
-- ARGV[4]  item
-- ARGV[5]  cooldown_ms
--
-- Returns  1 | {'lent items', item} | {'unknown items', item}
--
-- Twin of rules/pool.py: cool_item.

--@include pool/state.lua
--@include pool/waiting_line.lua
--@include pool/advance.lua
--@include pool/cool.lua
--@include pool/commit.lua
local name = ARGV[4]
advance()
local item, unreadable = load(name)
if unreadable then
  commit()
  return unreadable
end
if not item or taken(item) then
  commit()
  return { item and 'lent items' or 'unknown items', name }
end

cool_or_free(name, item, tonumber(ARGV[5]))
commit()
return 1
