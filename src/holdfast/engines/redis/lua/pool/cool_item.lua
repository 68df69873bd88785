-- Keep an item that nobody has from everybody; what is lent is its borrower's affair.
--
-- KEYS[1]  the name's own key
-- ARGV[4]  item
-- ARGV[5]  cooldown_ms
--
-- Returns  1 | {'lent items', item} | {'unknown items', item}
--
-- Same law as rules/pool.py: cool_item.

--@include pool/pool.lua
local name = ARGV[4]
settle()
local item = load(name)
if not item or taken(item) then
  commit()
  return { item and 'lent items' or 'unknown items', name }
end

rest(name, item, tonumber(ARGV[5]))
commit()
return 1
