-- Write the record of a queue.
--
-- KEYS[1], ARGV[1…2]  as queue/state.lua
--
-- Returns  nothing; it defines the functions allow_at_maxmemory, next_fence and save.

-- Delete a key that never exists: a script whose first write frees memory succeeds at maxmemory.
local function allow_at_maxmemory() redis.call('DEL', base .. ':-') end

-- Return the first of `many` consecutive fences, all larger than every fence before.
local function next_fence(many)
  local first = math.max(fence + 1, now)
  fence = first + many - 1
  return first
end

-- Write the record. With `maybe_empty`, check whether the queue is empty now: the record of an empty queue expires.
local function save(maybe_empty)
  local record =
    cmsgpack.pack(fence, number, ticket, checked, next_check, drain_token, drain_until, lanes, counts)
  if maybe_empty and redis.call('EXISTS', base .. ':messages', base .. ':consumers', base .. ':dead') == 0 then
    -- These are empty, unless another program wrote there.
    redis.call('DEL', base .. ':heads', base .. ':behind', base .. ':key_lines')
    redis.call('SET', base, record, 'PX', ARGV[2])
  else
    redis.call('SET', base, record)
  end
end
