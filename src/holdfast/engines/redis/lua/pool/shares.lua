-- The items of a share: chosen when a tag first borrows after a change of the pool, and then remembered.
--
-- KEYS, ARGV  those of pool/state.lua
--
-- Returns  nothing; it defines the functions members, reset_shares and next_free.
--
-- Twin of rules/pool_state.py: items_of_share. Only this file and pool/change.lua read the whole pool, in few calls.

--@const SHARES_MAX = rules.pool_state.SHARES_MAX
local BATCH = 1000

local function reset_shares()
  if shares == 0 then return end
  for _, share in ipairs(redis.call('HKEYS', base .. ':shares')) do redis.call('DEL', base .. ':share:' .. share) end
  redis.call('DEL', base .. ':shares', base .. ':parts')
  shares = 0
end

local function members()
  local names = redis.call('HKEYS', base .. ':items')
  if leaving == 0 then return names end
  local found = {}
  for _, name in ipairs(names) do
    local item = load(name)
    if not (item and item[LEAVING]) then found[#found + 1] = name end
  end
  return found
end

-- Return the `count` names whose hash with the tag is lowest. Their order does not matter: only the bucket that the last
-- of them is in has to be sorted.
local function lowest(tag, count)
  local buckets, found = {}, {}
  local function hashed(name) return redis.sha1hex(tag .. '\n' .. name) end
  for _, name in ipairs(members()) do
    local begin = string.sub(hashed(name), 1, 2)
    local bucket = buckets[begin] or {}
    buckets[begin] = bucket
    bucket[#bucket + 1] = name
  end
  for begin = 0, 255 do
    local bucket = buckets[string.format('%02x', begin)] or {}
    if #found + #bucket > count then
      table.sort(bucket, function(one, other) return hashed(one) .. one < hashed(other) .. other end)
    end
    for i = 1, math.min(#bucket, count - #found) do found[#found + 1] = bucket[i] end
    if #found == count then break end
  end
  return found
end

-- Add these items to the share, and the free ones to its order.
local function add_to_share(share, names)
  local parts = redis.call('HMGET', base .. ':parts', unpack(names))
  local orders = redis.call('ZMSCORE', base .. ':free', unpack(names))
  local only_this, new_parts, free_orders = cmsgpack.pack({ share }), {}, {}
  for i, name in ipairs(names) do
    local text = only_this
    if parts[i] then
      local all = cmsgpack.unpack(parts[i])
      all[#all + 1] = share
      text = cmsgpack.pack(all)
    end
    new_parts[2 * i - 1], new_parts[2 * i] = name, text
    if orders[i] then
      free_orders[#free_orders + 1] = orders[i]
      free_orders[#free_orders + 1] = name
    end
  end
  redis.call('HSET', base .. ':parts', unpack(new_parts))
  if free_orders[1] then redis.call('ZADD', base .. ':share:' .. share, unpack(free_orders)) end
end

-- Choose the items of a share, unless they were chosen since the last change of the pool. Return the share's name.
local function collect_share(tag, ppm)
  local share = share_of(tag, ppm)
  if size == 0 or redis.call('HEXISTS', base .. ':shares', share) == 1 then return share end
  if shares >= SHARES_MAX then reset_shares() end
  local count = math.max(1, math.floor(size * ppm / WHOLE_PPM))
  local names = lowest(tag, count)
  shares = shares + 1
  redis.call('HSET', base .. ':shares', share, count)
  for first = 1, count, BATCH do add_to_share(share, { unpack(names, first, math.min(first + BATCH - 1, count)) }) end
  return share
end

local function next_free(tag, ppm)
  if ppm >= WHOLE_PPM then return redis.call('ZRANGE', base .. ':free', 0, 0)[1] end
  return redis.call('ZRANGE', base .. ':share:' .. collect_share(tag, ppm), 0, 0)[1]
end
