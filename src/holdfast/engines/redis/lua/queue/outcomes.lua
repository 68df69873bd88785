-- So much has become of these messages; each by itself, and only if it is with this consumer.
--
-- KEYS[1]  the name's own key
-- ARGV[3]  token
-- ARGV[4]  dead_max  how many dead letters are kept; 0 for all
-- ARGV[5…] outcomes  for each: entry; and how, empty for `ack`, or `kind delay_ms #reason`, a new line, reason, error
--
-- Returns  {'concluded', lost entry…}
--
-- Same law as rules/queue/messages.py: conclude.

--@include queue/state.lua
--@include queue/messages.lua
local WORDS = { ack = 'acked', retry = 'retried', release = 'released', reject = 'dead_lettered' }
local words, token = ARGV, ARGV[3]
local mine, who = base .. ':h:' .. token, living(token)
local entries, told, found, lost, gone, over, ready = {}, {}, {}, { 'concluded' }, {}, 0, 0
-- The text is read of what is not simply done, and of what has a key: somebody may stand behind it.
for i = 5, #words, 2 do
  local entry = words[i]
  entries[(i - 3) / 2] = entry
  if (#entry > DIGITS or words[i + 1] ~= '') and string.sub(words[i + 1], 1, 6) ~= 'verify' then
    told[#told + 1] = entry
  end
end
local fences = who and fences_of(entries, token) or {}
if who then
  for i, text in ipairs(texts_of(told)) do found[told[i]] = text end
end

local dropped, tally = {}, { ack = 0, retry = 0, release = 0, reject = 0 }
for i, entry in ipairs(entries) do
  local how, kind, has = words[4 + 2 * i], 'ack', fences[i] and not dropped[entry]
  local message, wait_ms, reason, why
  if how ~= '' then
    local length, at
    kind, wait_ms, length, at = string.match(how, '^(%a+) (%d+) (%d+)\n()')
    reason, why = string.sub(how, at, at + length - 1), string.sub(how, at + length)
    wait_ms = tonumber(wait_ms)
  end
  if has and kind ~= 'verify' and (kind ~= 'ack' or #entry > DIGITS) then
    has = found[entry]
    message = has and read(entry, has)
  end
  if not has then
    lost[#lost + 1] = entry
  elseif kind ~= 'verify' then
    dropped[entry] = true
    over = over + 1
    gone[over] = entry
    tally[kind] = tally[kind] + 1
    if kind == 'ack' then
      if message then ready = ready + follow(message.key) end
    elseif kind == 'release' then
      ready = ready + put(message, wait_ms)
    else
      -- Its consumer has lived to tell: whatever was suspected, it kills nobody.
      failed(message, who[LABEL], why ~= '' and why or reason, 1, 0)
      message.crashes = 0
      if kind == 'retry' then
        ready = ready + put(message, wait_ms)
      else
        bury(message, reason)
        ready = ready + follow(message.key)
      end
    end
  end
end

if #graves > 0 then redis.call('ZCARD', base .. ':died') end
check()
if #gone > 0 or #lost > 1 then
  make_way()
  store()
  close_graves(tonumber(ARGV[4]))
  each_part(gone, function(...)
    redis.call('ZREM', mine, ...)
    redis.call('HDEL', base .. ':m', ...)
  end)
  for kind, word in pairs(WORDS) do count(word, tally[kind]) end
  count('lost', #lost - 1)
  ring(ready)
  save(not who)
  wake()
end
return lost
