-- Make these dead letters messages again, or forget them.
--
-- KEYS[1]  the name's own key
-- ARGV[3]  how  `purge`, `redrive`, or `reset` to redrive them as if they had never been tried
-- ARGV[4]  token  of this call; empty for none
-- ARGV[5…] ids
--
-- Returns  {'moved', id…}
--
-- Same law as rules/queue/dead_letters.py: redrive, purge.

--@include queue/state.lua
--@include queue/messages.lua
local RESULT_MEMORY_MS = 60000
local said = ARGV[4] ~= '' and base .. ':said:' .. ARGV[4]
local before = said and redis.call('GET', said)
if before then return { 'moved', unpack(cmsgpack.unpack(before)) } end

local how, moved, seen, ready = ARGV[3], { 'moved' }, {}, 0
for i = 5, #ARGV do
  local id = ARGV[i]
  local letter = not seen[id] and redis.call('HGET', base .. ':dead', id)
  if letter then
    seen[id], moved[#moved + 1] = true, id
    exhume(id, letter)
    if how ~= 'purge' then
      local reason, at = string.match(letter, '^%d+ (%d+)\n()')
      local message = read(id, string.sub(letter, at + reason))
      message.crashes = 0
      if how == 'reset' then message.attempts, message.first, message.last, message.why = 0, '', '', '' end
      if message.key and (firsts[message.key] or leads({ message.key })[1]) then
        line_up(text_of(message), message.key)
      else
        ready = ready + put(message, 0)
      end
    end
  end
end
if #moved == 1 then return moved end
redis.call('ZCARD', base .. ':died')
check()
if how == 'purge' then make_way() end
store()
redis.call('HDEL', base .. ':dead', unpack(moved, 2))
redis.call('ZREM', base .. ':died', unpack(dug))
if said then redis.call('SET', said, cmsgpack.pack({ unpack(moved, 2) }), 'PX', RESULT_MEMORY_MS) end
count(how == 'purge' and 'purged' or 'redriven', #moved - 1)
ring(ready)
save(true)
wake()
return moved
