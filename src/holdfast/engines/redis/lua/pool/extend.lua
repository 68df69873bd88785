-- Restart the ttl of an item that is still the caller's; a lapsed one stays lapsed.
--
-- KEYS[1]  the name's own key
-- ARGV[4]  item
-- ARGV[5]  token
-- ARGV[6]  ttl_ms
--
-- Returns  1 | {'not held', why, detail}
--
-- Same law as rules/pool.py: extend.

--@include pool/pool.lua
local item = load(ARGV[4])
make_way()
if not item or item[STATE] ~= 'lent' or item[TOKEN] ~= ARGV[5] or item[BACK] <= now then
  settle()
  commit()
  return not_held(ARGV[5])
end

item[TTL] = tonumber(ARGV[6])
item[BACK] = math.max(item[BACK], now + item[TTL] * 1000)
put(ARGV[4], item)
if ending then commit() end
return 1
