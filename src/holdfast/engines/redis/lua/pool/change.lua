-- Other items from now on: all of the change, or none of it.
--
-- KEYS[1]  the name's own key
-- ARGV[4]  how     set, add or remove
-- ARGV[5]  items   with NUL between them
-- ARGV[6]  leave   1 if items that are lent go when they come back
-- ARGV[7]  seed    spreads the order in which new items are used first
-- ARGV[8]  permits
--
-- Returns  {'changed', added, removed, those that go when they come back} | {'lent items', …} | {'unknown items', …}
--
-- Same law as rules/pool.py: change.

--@include pool/pool.lua
local SPREAD_BELOW, SPREAD_PART = 4294967296, 67108864
local how, leave, seed = ARGV[4], ARGV[6] == '1', tonumber(ARGV[7])
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
-- Many at once: a call for each of a hundred thousand items would take the server's time from everybody.
local function read(names, each)
  for first = 1, #names, 500 do
    local last = math.min(first + 499, #names)
    local texts = redis.call('HMGET', base .. ':i', unpack(names, first, last))
    for i = first, last do
      local text = texts[i - first + 1]
      local item = text and { cmsgpack.unpack(text) }
      if item then was[names[i]] = { item[STATE], item[TOKEN] } end
      each(names[i], item)
    end
  end
end

local function write(command, key, words)
  for first = 1, #words, 1000 do
    redis.call(command, base .. key, unpack(words, first, math.min(first + 999, #words)))
  end
end

local gone, away, absent, lent = {}, {}, { 'unknown items' }, { 'lent items' }
read(going, function(name, item)
  if not item or item[LEAVING] then
    absent[#absent + 1] = name
  elseif item[STATE] == 'free' then
    gone[#gone + 1] = name
  else
    away[#away + 1] = { name, item }
    if taken(item) then lent[#lent + 1] = name end
  end
end)
if #absent > 1 or (#lent > 1 and not leave) then
  commit()
  return #absent > 1 and absent or lent
end

regroup()
local added, back, fields, orders = 0, {}, {}, {}
read(how == 'remove' and {} or wanted, function(name, item)
  if item and not item[LEAVING] then return end
  if item then
    back[#back + 1] = { name, item }
  else
    local placed = seed * (2 * added + 1) % SPREAD_BELOW
    local part = placed % SPREAD_PART
    item = new_item((part * part + placed) % SPREAD_BELOW)
    fields[#fields + 1] = name
    fields[#fields + 1] = cmsgpack.pack(unpack(item, 1, 15))
    orders[#orders + 1] = int(item[ORDER])
    orders[#orders + 1] = name
  end
  added = added + 1
end)
write('HSET', ':i', fields)
write('ZADD', ':f', orders)
write('ZREM', ':f', gone)
write('HDEL', ':i', gone)
for _, each in ipairs(back) do
  each[2][LEAVING] = false
  put(each[1], each[2])
end
for _, each in ipairs(away) do
  each[2][LEAVING] = true
  put(each[1], each[2])
end
leaving = leaving - #back + #away
size, permits = size + added - #going, tonumber(ARGV[8])
if size > 0 then
  hand_out()
else  -- there is nothing to wait for any more
  for _, token in ipairs(redis.call('ZRANGE', base .. ':q', 0, -1)) do
    local seat = seat_of(token)
    leave_queue(token)
    if seat then ring(seat[1], token, seat[8]) end
  end
end
commit()
lent[1] = 'changed'
table.insert(lent, 2, added)
table.insert(lent, 3, #going)
return lent
