-- Admit it in every window, or in none.
--
-- KEYS[1]  tally   string, packed: five values for each sliding window (begin_us, last_us, amount, total, older), two for
--                  each level (level_us, last_us). `older` are 16 bytes for each entry: last_us, amount
-- ARGV[1]  smooth  1 for levels that drain evenly, 0 for sliding windows
-- ARGV[2]  cost
-- ARGV[3]  take    1 to count it, 0 to look only
-- ARGV[4…] rates   for each window: count, period_us
--
-- Returns  {'decided', 1 or 0, remaining, limit, retry_us, reset_us}
--
-- Same law as rules/limit.py: hit. Entries are cut and added as bytes, so that a hit costs the same however many there
-- are.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local smooth, cost, take = ARGV[1] == '1', tonumber(ARGV[2]), ARGV[3] == '1'
local count = (#ARGV - 3) / 2
local width = smooth and 2 or 5
local text = redis.call('GET', KEYS[1])
local kept = text and { cmsgpack.unpack(text) } or {}

local worst, worst_remaining, worst_limit, worst_reset = 0, 0, 0, 0
local least, least_limit, least_reset = math.huge, 0, 0
local longest = 0  -- how long any of it matters
local function look(remaining, limit, retry, reset)
  if retry > worst then worst, worst_remaining, worst_limit, worst_reset = retry, remaining, limit, reset end
  if remaining < least or (remaining == least and reset > least_reset) then
    least, least_limit, least_reset = remaining, limit, reset
  end
end

for i = 1, count do
  local limit, period = tonumber(ARGV[2 + 2 * i]), tonumber(ARGV[3 + 2 * i])
  local at = width * (i - 1)
  if smooth then
    local level, last = kept[at + 1] or 0, kept[at + 2] or 0
    if last - period > now then level, last = 0, 0 end
    local present = math.max(now, last)
    longest = math.max(longest, present - now + period)
    level = math.max(0, level - (present - last))
    local each = period / limit
    local over = level + cost * each - period
    local retry = cost > limit and period or over > 1 and math.ceil(over) or 0
    if take and retry == 0 then
      kept[at + 1], kept[at + 2] = level + cost * each, present
      level = kept[at + 1]
    end
    local remaining = math.max(0, math.min(limit, math.floor((period + 1 - level) / each)))
    look(remaining, limit, retry, math.ceil(level))
  else
    local begin, last, amount, total, older =
      kept[at + 1] or 0, kept[at + 2] or 0, kept[at + 3] or 0, kept[at + 4] or 0, kept[at + 5] or ''
    if last + period <= now or last - period > now then
      begin, last, amount, total, older = 0, 0, 0, 0, ''
    end
    local present = math.max(now, last)
    longest = math.max(longest, present - now + period)
    local first = 1
    while first < #older do
      local moment, many = struct.unpack('dd', older, first)
      if moment + period > now then break end
      total, first = total - many, first + 16
    end
    if first > 1 then older = string.sub(older, first) end
    local short, retry = total + cost - limit, 0
    if short > 0 then
      retry = cost > limit and period or last + period - present
      for place = 1, #older, 16 do
        local moment, many = struct.unpack('dd', older, place)
        short = short - many
        if short <= 0 and cost <= limit then retry = moment + period - present break end
      end
    elseif take then
      local grain = limit > 100 and math.floor(period / 100) or 0
      if amount > 0 and present - begin <= grain then
        amount = amount + cost
      else
        if amount > 0 then older = older .. struct.pack('dd', last, amount) end
        begin, amount = present, cost
      end
      last, total = present, total + cost
      kept[at + 1], kept[at + 2], kept[at + 3], kept[at + 4], kept[at + 5] = begin, last, amount, total, older
    end
    look(math.max(0, limit - total), limit, retry, total > 0 and last + period - present or 0)
  end
end

if worst > 0 then return { 'decided', 0, worst_remaining, worst_limit, worst, worst_reset } end
if take then redis.call('SET', KEYS[1], cmsgpack.pack(unpack(kept)), 'PX', math.ceil(longest / 1000)) end
return { 'decided', 1, least, least_limit, 0, least_reset }
