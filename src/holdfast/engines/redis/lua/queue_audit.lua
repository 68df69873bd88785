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

local function fault(text) answer[#answer + 1] = text end

local function stands(id)
  if not ids[id] then order[#order + 1] = id end
  ids[id] = (ids[id] or 0) + 1
  answer[2] = answer[2] + 1
end

local known, missing = {}, 0
local all = redis.call('HGETALL', base .. ':m')
for i = 1, #all, 2 do known[all[i]] = read(all[i], all[i + 1]).id end
local function look_at(entries)
  for _, entry in ipairs(entries) do
    if known[entry] then stands(known[entry]) else missing = missing + 1 end
    places[entry] = true
  end
end

for _, lane in ipairs(lanes) do look_at(redis.call('LRANGE', base .. ':s:' .. lane, 0, -1)) end
look_at(redis.call('ZRANGE', base .. ':due', 0, -1))
for _, token in ipairs(redis.call('HKEYS', base .. ':who')) do
  look_at(redis.call('ZRANGE', base .. ':h:' .. token, 0, -1))
end
for _, id in ipairs(redis.call('HKEYS', base .. ':dead')) do stands(id) end

for _, id in ipairs(order) do
  if ids[id] > 1 then fault('message ' .. id .. ' is in ' .. ids[id] .. ' places') end
end
local nowhere = 0
for entry in pairs(known) do
  if not places[entry] then nowhere = nowhere + 1 end
end
if nowhere > 0 then fault(nowhere .. ' messages are in no place') end
if missing > 0 then fault(missing .. ' places have no message') end
local dead, died = redis.call('HLEN', base .. ':dead'), redis.call('ZCARD', base .. ':died')
if dead ~= died then fault(dead .. ' dead letters, ' .. died .. ' of them in order') end
return answer
