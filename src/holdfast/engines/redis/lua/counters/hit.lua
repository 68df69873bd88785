-- Admit a hit in every window, or in none.
--
-- KEYS[1]  counter  string, packed: five values for each sliding window (begin_us, last_us, amount, total, older), two for
--                   each level (level_us, last_us). `older` has 16 bytes for each entry: last_us, amount
-- ARGV[1]  smooth   1 for levels that drain evenly (GCRA), 0 for sliding windows
-- ARGV[2]  cost
-- ARGV[3]  take     1 to count the hit, 0 to only decide
-- ARGV[4…] rates    for each window: count, period_us
--
-- Returns  {'decision', 1 or 0, remaining, limit, retry_us, reset_us, period_us}
--
-- Twin of rules/limit.py: hit. The script cuts off and appends entries as bytes, so that a hit costs the same however many
-- entries there are. It defines no function, because building a function would cost as much as a window.

--@const GRAINS = rules.limit.GRAINS
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local smooth, cost, take = ARGV[1] == '1', tonumber(ARGV[2]), ARGV[3] == '1'
local width = smooth and 2 or 5
local text = redis.call('GET', KEYS[1])
local kept = text and { cmsgpack.unpack(text) } or {}

local worst, worst_remaining, worst_limit, worst_reset, worst_period = 0, 0, 0, 0, 0
local least, least_limit, least_reset, least_period = math.huge, 0, 0, 0
local longest = 0  -- how long the counter must be stored
local at = 0

for i = 4, #ARGV, 2 do
  local limit, period = tonumber(ARGV[i]), tonumber(ARGV[i + 1])
  local remaining, retry, reset = 0, 0, 0
  local present  -- the time, or the time of the last hit if the clock has gone back since
  if smooth then
    local level, last = kept[at + 1] or 0, kept[at + 2] or 0
    if last - period > now then level, last = 0, 0 end
    present = now > last and now or last
    level = math.max(0, level - (present - last))
    local each = period / limit
    local over = level + cost * each - period
    retry = cost > limit and period or over > 1 and math.ceil(over) or 0
    if take and retry == 0 then
      level = level + cost * each
      kept[at + 1], kept[at + 2] = level, present
    end
    remaining = math.max(0, math.min(limit, math.floor((period + 1 - level) / each)))
    reset = math.ceil(level)
  else
    local begin, last, amount, total, older = kept[at + 1], kept[at + 2], kept[at + 3], kept[at + 4], kept[at + 5]
    if not begin or last + period <= now or last - period > now then
      begin, last, amount, total, older = 0, 0, 0, 0, ''
    end
    present = now > last and now or last
    local first, size = 1, #older
    while first < size do
      local moment, many = struct.unpack('dd', older, first)
      if moment + period > now then break end
      total, first = total - many, first + 16
    end
    if first > 1 then older = string.sub(older, first) end
    local short = total + cost - limit
    if short > 0 then
      retry = cost > limit and period or last + period - present
      for place = 1, #older, 16 do
        local moment, many = struct.unpack('dd', older, place)
        short = short - many
        if short <= 0 and cost <= limit then retry = moment + period - present break end
      end
    elseif take then
      local grain = limit > GRAINS and math.floor(period / GRAINS) or 0
      if amount > 0 and present - begin <= grain then
        amount = amount + cost
      else
        if amount > 0 then older = older .. struct.pack('dd', last, amount) end
        begin, amount = present, cost
      end
      last, total = present, total + cost
      kept[at + 1], kept[at + 2], kept[at + 3], kept[at + 4], kept[at + 5] = begin, last, amount, total, older
    end
    if total < limit then remaining = limit - total end
    if total > 0 then reset = last + period - present end
  end
  if present - now + period > longest then longest = present - now + period end
  if retry > worst then
    worst, worst_remaining, worst_limit, worst_reset, worst_period = retry, remaining, limit, reset, period
  end
  if remaining < least or (remaining == least and reset > least_reset) then
    least, least_limit, least_reset, least_period = remaining, limit, reset, period
  end
  at = at + width
end

if worst > 0 then return { 'decision', 0, worst_remaining, worst_limit, worst, worst_reset, worst_period } end
if take then redis.call('SET', KEYS[1], cmsgpack.pack(unpack(kept)), 'PX', math.ceil(longest / 1000)) end
return { 'decision', 1, least, least_limit, 0, least_reset, least_period }
