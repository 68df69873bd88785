-- Other items from now on: all of the change, or none of it.
--
-- KEYS[1]  the name's own key
-- ARGV[4]  how     set, add or remove
-- ARGV[5]  items   with NUL between them
-- ARGV[6]  leave   1 if items that are lent go when they come back
-- ARGV[7]  dice    spreads the order in which new items are used first
-- ARGV[8]  permits
--
-- Returns  {'changed', added, removed, those that go when they come back} | {'lent items', …} | {'unknown items', …}
--
-- Same law as rules/pool.py: change.

--@include pool.lua
local SPREAD, SPREAD_BELOW = 2654435761, 4294967296
local how, leave, dice = ARGV[4], ARGV[6] == '1', tonumber(ARGV[7])
settle()
local wanted, asked = {}, {}
for name in string.gmatch(ARGV[5], '[^%z]+') do
  wanted[#wanted + 1], asked[name] = name, true
end
local going = how == 'remove' and wanted or {}
if how == 'set' then
  for _, name in ipairs(members()) do
    if not asked[name] then going[#going + 1] = name end
  end
end
local items, absent, lent = {}, { 'unknown items' }, { 'lent items' }
for _, name in ipairs(going) do
  local item = load(name)
  items[name] = item
  if not item or item[LEAVING] then
    absent[#absent + 1] = name
  elseif taken(item) then
    lent[#lent + 1] = name
  end
end
if #absent > 1 or (#lent > 1 and not leave) then
  commit()
  return #absent > 1 and absent or lent
end

local added = 0
for _, name in ipairs(how == 'remove' and {} or wanted) do
  local item = load(name)
  if not item then
    put(name, new_item((dice + added * SPREAD) % SPREAD_BELOW))
    added = added + 1
  elseif item[LEAVING] then
    item[LEAVING] = false
    leaving = leaving - 1
    put(name, item)
    added = added + 1
  end
end
for _, name in ipairs(going) do
  local item = items[name]
  if item[STATE] == 'free' then
    drop(name)
  else
    item[LEAVING] = true
    leaving = leaving + 1
    put(name, item)
  end
end
size, permits = size + added - #going, tonumber(ARGV[8])
regroup()
if size > 0 then
  hand_out()
else  -- there is nothing to wait for any more
  for _, token in ipairs(redis.call('ZRANGE', base .. ':q', 0, -1)) do
    local seat = seat_of(token)
    leave_queue(token)
    ring(seat[1], token, seat[8])
  end
end
commit()
lent[1] = 'changed'
table.insert(lent, 2, added)
table.insert(lent, 3, #going)
return lent
