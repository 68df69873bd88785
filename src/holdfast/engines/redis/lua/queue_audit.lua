-- Is every message in exactly one place? Looks at everything in one step; the server does nothing else meanwhile.
--
-- KEYS[1]  the name's own key
-- ARGV     nothing more
--
-- Returns  {'audited', messages, fault…}
--
-- Same law as rules/letters.py: audit.

--@include queue_depot.lua
--@include queue_letters.lua
local answer, places, ids, order = { 'audited', 0 }, {}, {}, {}

local function fault(many, text)
  if many > 0 then answer[#answer + 1] = many .. ' ' .. text end
end

local function stands(id)
  if not ids[id] then order[#order + 1] = id end
  ids[id] = (ids[id] or 0) + 1
  answer[2] = answer[2] + 1
end

local known, missing, leading, notes = {}, 0, {}, {}  -- key -> how many come first of it; and what should be noted
local all = redis.call('HGETALL', base .. ':m')
for i = 1, #all, 2 do known[all[i]] = read(all[i], all[i + 1]) end
local function look_at(entries, holder)
  for _, entry in ipairs(entries) do
    local message = known[entry]
    if message then stands(message.id) else missing = missing + 1 end
    places[entry] = true
    if message and message.key and holder then
      leading[message.key] = (leading[message.key] or 0) + 1
      notes[message.key] = holder == '' and entry or entry .. ' ' .. holder
    end
  end
end

for _, lane in ipairs(lanes) do look_at(redis.call('LRANGE', base .. ':s:' .. lane, 0, -1), '') end
look_at(redis.call('ZRANGE', base .. ':due', 0, -1), '')
for _, token in ipairs(redis.call('HKEYS', base .. ':who')) do
  look_at(redis.call('ZRANGE', base .. ':h:' .. token, 0, -1), token)
end
local others = redis.call('ZRANGE', base .. ':behind', 0, -1)
look_at(others)
for _, id in ipairs(redis.call('HKEYS', base .. ':dead')) do stands(id) end

for _, id in ipairs(order) do
  if ids[id] > 1 then answer[#answer + 1] = 'message ' .. id .. ' is in ' .. ids[id] .. ' places' end
end
local nowhere = 0
for entry in pairs(known) do
  if not places[entry] then nowhere = nowhere + 1 end
end
fault(nowhere, 'messages are in no place')
fault(missing, 'places have no message')

local several, leaderless, wrong, in_line = 0, 0, 0, 0
for _, many in pairs(leading) do
  if many > 1 then several = several + 1 end
end
for _, entry in ipairs(others) do
  local key = known[entry] and known[entry].key
  if key and redis.call('ZSCORE', base .. ':lines', line_of(key) .. entry) then in_line = in_line + 1 end
  if key and not leading[key] then leading[key], leaderless = 0, leaderless + 1 end
end
local noted = redis.call('HGETALL', base .. ':first')
for i = 1, #noted, 2 do
  if notes[noted[i]] ~= noted[i + 1] then wrong = wrong + 1 end
  notes[noted[i]] = nil
end
for _ in pairs(notes) do wrong = wrong + 1 end
fault(several, 'keys have more than one message that comes first')
fault(leaderless, 'keys have no message that comes first')
fault(wrong, 'keys have another message noted as the one that comes first')
fault(math.max(#others, redis.call('ZCARD', base .. ':lines')) - in_line, 'messages behind others are not in line')
local dead, died = redis.call('HLEN', base .. ':dead'), redis.call('ZCARD', base .. ':died')
if dead ~= died then answer[#answer + 1] = dead .. ' dead letters, ' .. died .. ' of them in order' end
return answer
