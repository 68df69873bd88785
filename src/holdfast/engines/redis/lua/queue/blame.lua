-- Who falls, and what becomes of a message whose consumer was taken for dead. For scripts that take away.
--
-- KEYS[1], ARGV[1…2]  as queue/state.lua
--
-- Returns  nothing; it gives the command the functions falls and mourned.
--
-- Same law as rules/queue/consumers.py: _falls, _mourned. A message was taken at the time that its fence says.

local BLAME_ONE, BLAME_UNCLEAR, PROBATIONS_PER_TTL = 'one', 'unclear', 3

-- What this consumer has taken since then may have to do with its death.
local function trial_of(who)
  if not who[KEEPS] then return -1 end
  local ttl = who[TTL] * 1000
  return who[ENDS] - ttl - math.floor(ttl / PROBATIONS_PER_TTL)
end

-- Taken for dead. What it has at this moment says who may be to blame; later, some of that is gone.
local function falls(token, who)
  if who[FALLEN] then return end
  local newest, trial, new = redis.call('ZRANGE', base .. ':h:' .. token, -2, -1, 'WITHSCORES'), trial_of(who), 0
  for i = 2, #newest, 2 do
    if tonumber(newest[i]) >= trial then new = new + 1 end
  end
  who[FALLEN] = new == 1 and BLAME_ONE or BLAME_UNCLEAR
end

-- The message after the death of its consumer; false if that made it a dead letter.
local function mourned(message, who, taken, attempts_max)
  local new = tonumber(taken) >= trial_of(who)
  local blamed = new and (who[FALLEN] == BLAME_ONE or lane_of(message) == QUARANTINE and not who[KEEPS])
  failed(message, who[LABEL], 'its consumer died', blamed and 1 or 0, blamed and 0 or 1)
  if not new then message.crashes = 0 end
  if not blamed or message.attempts < attempts_max then return message end
  bury(message, 'attempts used up')
  return false
end
