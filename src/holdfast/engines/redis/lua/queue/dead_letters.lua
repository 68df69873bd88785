-- A page of dead letters, or one of them.
--
-- KEYS[1]  the name's own key
-- ARGV[3]  how    `list` or `get`
-- ARGV[4]  which  list: the place after which to begin, empty for the first; get: the id
-- ARGV[5]  limit
--
-- Returns  {'dead letters', last, text…}
--
-- Same law as rules/queue/dead_letters.py: list_dead, get_dead.

local base, PART = KEYS[1] .. ':mq', 1000
if ARGV[3] == 'get' then return { 'dead letters', '', redis.call('HGET', base .. ':dead', ARGV[4]) or nil } end
local after, limit = ARGV[4] == '' and '-' or '(' .. ARGV[4], tonumber(ARGV[5])
local places, ids = redis.call('ZRANGEBYLEX', base .. ':died', after, '+', 'LIMIT', 0, limit), {}
if #places == 0 then return { 'dead letters', '' } end
for i, place in ipairs(places) do ids[i] = string.sub(place, 22) end
local answer = { 'dead letters', #places == limit and places[#places] or '' }
for first = 1, #ids, PART do
  for _, text in ipairs(redis.call('HMGET', base .. ':dead', unpack(ids, first, math.min(first + PART - 1, #ids)))) do
    if text then answer[#answer + 1] = text end
  end
end
return answer
