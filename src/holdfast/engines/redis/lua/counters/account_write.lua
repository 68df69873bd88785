-- Write the budget's account. It expires with its period.
--
-- KEYS[1]  counter
-- ARGV     those of the command that follows
--
-- Returns  nothing; it defines the functions begin and store.

local function begin(period_ms)
  if ends == 0 then began, ends = now, now + period_ms * 1000 end
end

local function store()
  local account = cmsgpack.pack({ began, ends, spent, reservations })
  redis.call('SET', KEYS[1], account, 'PX', math.ceil((ends - now) / 1000))
end
