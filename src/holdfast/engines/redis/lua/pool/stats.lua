-- How the pool stands now: figures, and what could be listed beside them.
--
-- KEYS[1]  the name's own key
-- ARGV[4]  limit   at most so many items, and so many who wait
--
-- Returns  {'tally', fence, permits, size, lent, cooling, free, waiting, trouble, items, waiters}; eight values for each item:
--          name, state, leaving, fence, used, since_ms, remaining_ms, owner; three for each who waits: token, owner,
--          since_ms
--
-- Same law as rules/pool.py: count.

--@include pool/pool.lua
settle()
local limit, trouble = tonumber(ARGV[4]), ''
local items, waiters = {}, {}
local lent, far = redis.call('HLEN', base .. ':t'), redis.call('ZCARD', base .. ':b')

local function add(name)
  local item = load(name)
  local values = { name, item[STATE], item[LEAVING] and 1 or 0, int(item[FENCE]), item[USED],
    item[USED] > 0 and math.floor((now - item[SINCE]) / 1000) or -1,
    item[STATE] ~= 'free' and math.floor(math.max(0, item[BACK] - now) / 1000) or 0, item[OWNER] }
  for _, value in ipairs(values) do items[#items + 1] = value end
end

local function list()
  if limit == 0 then return end
  local listed = redis.call('ZRANGE', base .. ':b', 0, limit - 1)
  for _, name in ipairs(listed) do add(name) end
  if #listed < limit then
    for _, name in ipairs(redis.call('ZRANGE', base .. ':f', 0, limit - #listed - 1)) do add(name) end
  end
  for _, token in ipairs(redis.call('ZRANGE', base .. ':q', 0, limit - 1)) do
    local seat = seat_of(token)
    if seat then
      waiters[#waiters + 1] = token
      waiters[#waiters + 1] = seat[7]
      waiters[#waiters + 1] = math.floor((now - seat[3]) / 1000)
    end
  end
end

local listed, why = pcall(list)
if not listed then
  items, waiters, trouble = {}, {}, 'the items cannot be listed: ' .. tostring(type(why) == 'table' and why.err or why)
end
if packed then commit() end  -- whoever looks makes nothing
return { 'tally', int(fence), permits, size, lent, far - lent, redis.call('ZCARD', base .. ':f'), waiting, trouble, items,
  waiters }
