-- Read the account of one key, brought to the present. The scripts of budgets begin with this text.
--
-- KEYS[1]  tally   string, packed: {began_us, ends_us, spent, {token = {amount, until_us, settled}}}
-- ARGV     those of the command that follows
--
-- Returns  nothing by itself; the command that follows does.
--
-- Same law as rules/budget.py: settled.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local began, ends, spent, aside = 0, 0, 0, {}
local text = redis.call('GET', KEYS[1])
if text then
  local stored = cmsgpack.unpack(text)
  if 2 * stored[1] - stored[2] <= now and now < stored[2] then
    began, ends, spent = stored[1], stored[2], stored[3]
    for token, each in pairs(stored[4]) do
      if not each[3] or each[2] > now then aside[token] = each end
    end
  end
end

-- What is put aside, and when the first of it would be free again.
local function put_aside()
  local sum, first = 0, ends > 0 and ends - now or 0
  for _, each in pairs(aside) do
    if not each[3] and each[2] > now then
      sum = sum + each[1]
      if each[2] - now < first then first = each[2] - now end
    end
  end
  return sum, first
end

local function keep()
  redis.call('SET', KEYS[1], cmsgpack.pack({ began, ends, spent, aside }), 'PX', math.ceil((ends - now) / 1000))
end

local function told(ok)
  local sum, first = put_aside()
  return { 'spent', ok and 1 or 0, string.format('%.0f', spent), string.format('%.0f', sum),
    string.format('%.0f', began), ends > 0 and ends - now or 0, first }
end
