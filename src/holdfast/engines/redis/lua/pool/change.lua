-- Change the items of a pool: the whole change, or nothing.
--
-- KEYS[1]  the name's own key
-- ARGV[4]  operation  set, add or remove
-- ARGV[5]  items      with NUL between them
-- ARGV[6]  leave      1 if lent items leave when they come back
-- ARGV[7]  seed       spreads the order in which new items are first used
-- ARGV[8]  permits
--
-- Returns  {'changed', added, removed, lent items that leave later…} | {'lent items', …} | {'unknown items', …}
--
-- Twin of rules/pool.py: change.

--@include pool/state.lua
--@include pool/waiting_line.lua
--@include pool/advance.lua
--@include pool/commit.lua
--@const SPREAD_BELOW = rules.pool._SPREAD_BELOW
--@const SPREAD_PART = rules.pool._SPREAD_PART
local operation, leave, seed = ARGV[4], ARGV[6] == '1', tonumber(ARGV[7])
advance()
local named, is_named = {}, {}  -- the items of the command, in order and as a set
for name in string.gmatch(ARGV[5], '[^%z]+') do
  named[#named + 1], is_named[name] = name, true
end
local to_remove = operation == 'remove' and named or {}
if operation == 'set' then
  for _, name in ipairs(members()) do
    if not is_named[name] then to_remove[#to_remove + 1] = name end
  end
end
-- Many items per call: a call for each of a hundred thousand items would block the server.
local function read(names, each)
  for first = 1, #names, 500 do
    local last = math.min(first + 499, #names)
    local texts = redis.call('HMGET', base .. ':items', unpack(names, first, last))
    for i = first, last do
      local text = texts[i - first + 1]
      local readable, item = pcall(decode, text)
      if readable then was[names[i]] = { item[STATE], item[TOKEN] } end
      each(names[i], readable and item, text and not readable)
    end
  end
end

local function write(command, key, values)
  for first = 1, #values, 1000 do
    redis.call(command, base .. key, unpack(values, first, math.min(first + 999, #values)))
  end
end

local unknown = {}  -- the items to remove that cannot be read, as a set
local removed, away, absent, lent = {}, {}, { 'unknown items' }, { 'lent items' }
read(to_remove, function(name, item, unreadable)
  if unreadable then
    removed[#removed + 1], unknown[name] = name, true
  elseif not item or item[LEAVING] then
    absent[#absent + 1] = name
  elseif item[STATE] == FREE then
    removed[#removed + 1] = name
  else
    away[#away + 1] = { name, item }
    if taken(item) then lent[#lent + 1] = name end
  end
end)
if #absent > 1 or (#lent > 1 and not leave) then
  commit()
  return #absent > 1 and absent or lent
end

reset_shares()
local added, back, fields, orders = 0, {}, {}, {}
read(operation == 'remove' and {} or named, function(name, item, unreadable)
  if unreadable or item and not item[LEAVING] then return end
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
write('HSET', ':items', fields)
write('ZADD', ':free', orders)
write('ZREM', ':free', removed)
write('HDEL', ':items', removed)
if next(unknown) then
  write('ZREM', ':away', removed)
  local tokens = redis.call('HGETALL', base .. ':tokens')
  for i = 1, #tokens, 2 do
    if unknown[tokens[i + 1]] then redis.call('HDEL', base .. ':tokens', tokens[i]) end
  end
end
for _, each in ipairs(back) do
  each[2][LEAVING] = false
  put(each[1], each[2])
end
for _, each in ipairs(away) do
  each[2][LEAVING] = true
  put(each[1], each[2])
end
leaving = leaving - #back + #away
size, permits = size + added - #to_remove, tonumber(ARGV[8])
if size > 0 then
  offer_free_items()
else  -- an empty pool has no waiters
  for _, token in ipairs(redis.call('ZRANGE', base .. ':line', 0, -1)) do
    local waiter = waiter_of(token)
    leave_line(token)
    if waiter then wake(waiter[1], token, waiter[8]) end
  end
end
commit()
lent[1] = 'changed'
table.insert(lent, 2, added)
table.insert(lent, 3, #to_remove)
return lent
