-- End the lease of an item under this fence by force: the fence grows, the item rests, its borrower hears why.
--
-- KEYS[1]  the name's own key
-- ARGV[4]  item
-- ARGV[5]  fence
-- ARGV[6]  reason
--
-- Returns  1 | {'not held', 'no such lease', ''}
--
-- Same law as rules/pool.py: break_item.

--@include pool/pool.lua
local name = ARGV[4]
make_way()
settle()
local item = load(name)
if not item or not taken(item) or int(item[FENCE]) ~= ARGV[5] then
  commit()
  return { 'not held', 'no such lease', '' }
end

entomb(item[TOKEN], math.max(TOMB_US, 2 * item[TTL] * 1000), 'broken', ARGV[6])
item[FENCE] = next_fence()
rest(name, item, item[STATE] == 'lent' and item[REST] or 0)
commit()
return 1
