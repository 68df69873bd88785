-- Write and delete the records of consumers.
--
-- KEYS[1], ARGV[1…2]  as queue/state.lua
--
-- Returns  nothing; it defines the functions put_consumer and remove_consumer.

local function put_consumer(token, consumer)
  redis.call('ZADD', base .. ':expiries', int(consumer[EXPIRES]), token)
  redis.call('HSET', base .. ':consumers', token, cmsgpack.pack(unpack(consumer, 1, 10)))
  if consumer[ANNOUNCE_EXPIRY] and not consumer[BLAME] then
    redis.call('SET', base .. ':alive:' .. token, '1', 'PX', int(consumer[TTL]))
  end
end

local function remove_consumer(token, consumer)
  redis.call('HDEL', base .. ':consumers', token)
  redis.call('ZREM', base .. ':expiries', token)
  redis.call('ZREM', base .. ':waiting', token)
  if consumer[ANNOUNCE_EXPIRY] then redis.call('DEL', base .. ':alive:' .. token) end
end
