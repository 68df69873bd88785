-- The times until items come back.
--
-- KEYS, ARGV  those of pool/state.lua
--
-- Returns  nothing; it defines the functions next_ms and all_ms.
--
-- Twin of rules/pool.py: _next_ms.

local function until_ms(at) return math.max(1, math.ceil((at - now) / 1000)) end

local function next_ms()
  local at = kind == RWLOCK and -1 or 0  -- a writer waits for the last reader
  local back = redis.call('ZRANGE', base .. ':away', at, at, 'WITHSCORES')[2]
  return back and until_ms(back) or 0
end

-- When the last item would be free, with its cooldown: for clients that the server has forgotten by then.
local function all_ms()
  local last = redis.call('ZRANGE', base .. ':away', -1, -1, 'WITHSCORES')
  if not last[1] then return 0 end
  local item = load(last[1])
  if not item then return until_ms(last[2]) end
  return until_ms(item[BACK] + (item[STATE] == LENT and item[COOLDOWN] * 1000 or 0))
end
