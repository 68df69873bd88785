-- Restart the ttl of an item that the token still holds. An expired lease stays expired.
--
-- KEYS[1]  the name's own key
-- ARGV[4]  item
-- ARGV[5]  token
-- ARGV[6]  ttl_ms
--
-- Returns  1 | {'not held', reason, detail}
--
-- Twin of rules/pool.py: extend.

--@include pool/state.lua
--@include pool/waiting_line.lua
--@include pool/advance.lua
--@include pool/tombstones.lua
--@include pool/commit.lua
local item, unreadable = load(ARGV[4])
if unreadable then return unreadable end
allow_at_maxmemory()
if not item or item[STATE] ~= LENT or item[TOKEN] ~= ARGV[5] or item[BACK] <= now then
  advance()
  commit()
  return not_held(ARGV[5])
end

item[TTL] = tonumber(ARGV[6])
item[BACK] = math.max(item[BACK], now + item[TTL] * 1000)
put(ARGV[4], item)
if ending then commit() end
return 1
