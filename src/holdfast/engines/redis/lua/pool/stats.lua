-- Return the figures of a pool, and some of its items and waiters.
--
-- KEYS[1]  the name's own key
-- ARGV[4]  limit   the most items, and the most waiters, that are listed
--
-- Returns  {'pool', fence, permits, size, lent, cooling, free, waiting, trouble, items, waiters}; eight values for each item:
--          name, state, leaving, fence, used, since_ms, remaining_ms, holder; three for each waiter: token, holder,
--          since_ms
--
-- Twin of rules/pool.py: pool_stats.

--@include pool/state.lua
--@include pool/waiting_line.lua
--@include pool/advance.lua
--@include pool/commit.lua
advance()
local limit, trouble = tonumber(ARGV[4]), ''
local items, waiters, unreadable = {}, {}, {}
local lent, not_free = redis.call('HLEN', base .. ':tokens'), redis.call('ZCARD', base .. ':away')

local function add(name)
  local item = load(name)
  if not item then
    unreadable[#unreadable + 1] = name
    return
  end
  local values = { name, item[STATE], item[LEAVING] and 1 or 0, int(item[FENCE]), item[USED],
    item[USED] > 0 and math.floor((now - item[SINCE]) / 1000) or -1,
    item[STATE] ~= FREE and math.floor(math.max(0, item[BACK] - now) / 1000) or 0, item[HOLDER] }
  for _, value in ipairs(values) do items[#items + 1] = value end
end

local function list()
  -- An item that could not be read is neither free nor away.
  if redis.call('HLEN', base .. ':items') > not_free + redis.call('ZCARD', base .. ':free') then
    for _, name in ipairs(redis.call('HKEYS', base .. ':items')) do
      local found = redis.call('ZSCORE', base .. ':free', name) or redis.call('ZSCORE', base .. ':away', name)
      if not found then unreadable[#unreadable + 1] = name end
    end
  end
  if limit == 0 then return end
  local listed = redis.call('ZRANGE', base .. ':away', 0, limit - 1)
  for _, name in ipairs(listed) do add(name) end
  if #listed < limit then
    for _, name in ipairs(redis.call('ZRANGE', base .. ':free', 0, limit - #listed - 1)) do add(name) end
  end
  for _, token in ipairs(redis.call('ZRANGE', base .. ':line', 0, limit - 1)) do
    local waiter = waiter_of(token)
    if waiter then
      waiters[#waiters + 1] = token
      waiters[#waiters + 1] = waiter[7]
      waiters[#waiters + 1] = math.floor((now - waiter[3]) / 1000)
    end
  end
end

local listed, failure = pcall(list)
if not listed then
  items, waiters, trouble = {}, {}, 'the items cannot be listed: ' .. tostring(type(failure) == 'table' and failure.err or failure)
end
if unreadable[1] then
  trouble = 'items that cannot be read, and are not lent: ' .. table.concat(unreadable, ', ', 1, math.min(5, #unreadable))
    .. ' (fields of the key ' .. base .. ':items); remove them from the pool and add them again'
end
if packed then commit() end  -- do not create a pool that does not exist
return { 'pool', int(fence), permits, size, lent, math.max(0, not_free - lent), redis.call('ZCARD', base .. ':free'), waiting, trouble, items,
  waiters }
