-- Take all letters out of a box.
--
-- KEYS[1]  record
-- ARGV[1]  place   the directory's key
-- ARGV[2]  token   whose box
--
-- Returns  {'letters', then letter, a new line, text of each}
--
-- Same law as rules/directory.py: entry.

local box = ARGV[1] .. ':p:' .. ARGV[2]
local answer = redis.call('LRANGE', box, 0, -1)
if #answer > 0 then redis.call('DEL', box) end
table.insert(answer, 1, 'letters')
return answer
