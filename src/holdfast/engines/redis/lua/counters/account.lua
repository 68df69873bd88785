-- Read the budget's account of one key, as of now. The scripts of budgets begin with this text.
--
-- KEYS[1]  counter  string, packed: {began_us, ends_us, spent, {token = {amount, until_us, settled}}}
-- ARGV     those of the command that follows
--
-- Returns  nothing; the command that follows does.
--
-- Twin of rules/budget.py: Account, advance.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local began, ends, spent, reservations = 0, 0, 0, {}
local text = redis.call('GET', KEYS[1])
if text then
  local stored = cmsgpack.unpack(text)
  if 2 * stored[1] - stored[2] <= now and now < stored[2] then
    began, ends, spent = stored[1], stored[2], stored[3]
    for token, each in pairs(stored[4]) do
      if not each[3] or each[2] > now then reservations[token] = each end
    end
  end
end

-- The sum of all reservations, and how long until the first of them ends.
local function reserved()
  local sum, first = 0, ends > 0 and ends - now or 0
  for _, each in pairs(reservations) do
    if not each[3] and each[2] > now then
      sum = sum + each[1]
      if each[2] - now < first then first = each[2] - now end
    end
  end
  return sum, first
end

local function balance(ok)
  local sum, first = reserved()
  return { 'balance', ok and 1 or 0, string.format('%.0f', spent), string.format('%.0f', sum),
    string.format('%.0f', began), ends > 0 and ends - now or 0, first }
end
