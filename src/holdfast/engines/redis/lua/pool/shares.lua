-- The items of a share: looked out when a tag first asks after a change of the pool, and kept. A part of pool/pool.lua.
--
-- KEYS, ARGV  those of pool/pool.lua
--
-- Returns  nothing; it gives the functions members, regroup and freest.
--
-- Same law as rules/pool_state.py: chosen. It is the one place that looks through the pool, so it does that in few calls.

local BATCH = 1000

local function regroup()
  if shares == 0 then return end
  for _, share in ipairs(redis.call('HKEYS', base .. ':c')) do redis.call('DEL', base .. ':c:' .. share) end
  redis.call('DEL', base .. ':c', base .. ':x')
  shares = 0
end

local function members()
  local names = redis.call('HKEYS', base .. ':i')
  if leaving == 0 then return names end
  local found = {}
  for _, name in ipairs(names) do
    if not load(name)[LEAVING] then found[#found + 1] = name end
  end
  return found
end

-- So many names whose hash with the tag is lowest. Which they are matters, not their order: only those that begin like
-- the last of them have to be sorted.
local function lowest(tag, count)
  local heaps, found = {}, {}
  local function hashed(name) return redis.sha1hex(tag .. '\n' .. name) end
  for _, name in ipairs(members()) do
    local begin = string.sub(hashed(name), 1, 2)
    local heap = heaps[begin] or {}
    heaps[begin] = heap
    heap[#heap + 1] = name
  end
  for begin = 0, 255 do
    local heap = heaps[string.format('%02x', begin)] or {}
    if #found + #heap > count then
      table.sort(heap, function(one, other) return hashed(one) .. one < hashed(other) .. other end)
    end
    for i = 1, math.min(#heap, count - #found) do found[#found + 1] = heap[i] end
    if #found == count then break end
  end
  return found
end

-- These items are part of the share: each is told so, and those that are free stand in its order.
local function enrol(share, names)
  local parts = redis.call('HMGET', base .. ':x', unpack(names))
  local orders = redis.call('ZMSCORE', base .. ':f', unpack(names))
  local alone, known, free_ones = cmsgpack.pack({ share }), {}, {}
  for i, name in ipairs(names) do
    local text = alone
    if parts[i] then
      local many = cmsgpack.unpack(parts[i])
      many[#many + 1] = share
      text = cmsgpack.pack(many)
    end
    known[2 * i - 1], known[2 * i] = name, text
    if orders[i] then
      free_ones[#free_ones + 1] = orders[i]
      free_ones[#free_ones + 1] = name
    end
  end
  redis.call('HSET', base .. ':x', unpack(known))
  if free_ones[1] then redis.call('ZADD', base .. ':c:' .. share, unpack(free_ones)) end
end

-- Look out the items of a share, once for all until the pool changes.
local function gather(tag, ppm)
  local share = share_of(tag, ppm)
  if size == 0 or redis.call('HEXISTS', base .. ':c', share) == 1 then return share end
  if shares >= SHARES_MAX then regroup() end
  local count = math.max(1, math.floor(size * ppm / WHOLE))
  local names = lowest(tag, count)
  shares = shares + 1
  redis.call('HSET', base .. ':c', share, count)
  for first = 1, count, BATCH do enrol(share, { unpack(names, first, math.min(first + BATCH - 1, count)) }) end
  return share
end

local function freest(tag, ppm)
  if ppm >= WHOLE then return redis.call('ZRANGE', base .. ':f', 0, 0)[1] end
  return redis.call('ZRANGE', base .. ':c:' .. gather(tag, ppm), 0, 0)[1]
end

