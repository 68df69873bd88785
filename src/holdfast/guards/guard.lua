-- Check the fence of a holder and run its commands, in one step; or refuse both.
--
-- KEYS[1]  stamp    hash {fence, token, write, answer}
-- KEYS[2]  guarded  the key itself; then all other keys of the commands, in one slot
-- ARGV[1]  fence
-- ARGV[2]  token
-- ARGV[3]  write    random, new for each call: a call that is sent twice is applied once
-- ARGV[4…] commands for each: the number of its arguments, and the arguments
--
-- Returns  {1, {answer of each command}} | {0, newest fence}
--
-- Twin of rules/guard.py: accepts.

local seen = redis.call('HMGET', KEYS[1], 'fence', 'token', 'write', 'answer')
local fence, newest = tonumber(ARGV[1]), tonumber(seen[1] or '0')
if not newest then
  return redis.error_reply('ERR the stamp of a guarded key has no fence')
end
if fence < newest or (fence == newest and ARGV[2] ~= seen[2]) then
  return { 0, seen[1] }
end
if fence == newest and ARGV[3] == seen[3] then
  local before = cmsgpack.unpack(seen[4])
  return before.err and redis.error_reply(before.err) or { 1, before }
end

-- Record the fence first: a command that fails must not let older holders in.
redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'token', ARGV[2])
local answers, at = {}, 4
while at <= #ARGV do
  local last = at + tonumber(ARGV[at])
  local answer = redis.pcall(unpack(ARGV, at + 1, last))
  if type(answer) == 'table' and answer.err then
    -- The server applied the commands before the failed one, so a second copy of this call must get the same answer.
    redis.call('HSET', KEYS[1], 'write', ARGV[3], 'answer', cmsgpack.pack({ err = answer.err }))
    return answer
  end
  answers[#answers + 1] = answer
  at = last + 1
end
redis.call('HSET', KEYS[1], 'write', ARGV[3], 'answer', cmsgpack.pack(answers))
return { 1, answers }
