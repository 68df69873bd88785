-- Free the item, or have it cool, and offer it on, in one step; the same token may say so twice.
--
-- KEYS[1]  the name's own key
-- ARGV[4]  item
-- ARGV[5]  token
-- ARGV[6]  cooldown_ms
-- ARGV[7]  entomb   1 to refuse the token from now on
--
-- Returns  1 | {'not held', why, detail}
--
-- Same law as rules/pool.py: give_back.

--@include pool/pool.lua
local name, token = ARGV[4], ARGV[5]
make_way()
settle()
local item = load(name)
if not item or not taken(item) or item[TOKEN] ~= token then
  commit()
  return item and item[LAST] == token and 1 or not_held(token)
end

if ARGV[7] == '1' then entomb(token, TOMB_US, 'released', '') end
item[LAST] = token
rest(name, item, tonumber(ARGV[6]))
commit()
return 1
