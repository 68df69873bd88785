-- Calls with long lists, in parts.
--
-- KEYS, ARGV  those of the command that follows
--
-- Returns  nothing; it defines the function each_part.

local PART = 1000

-- Run `call` with the list, in parts that one command can carry.
local function each_part(list, call)
  for first = 1, #list, PART do
    call(unpack(list, first, math.min(first + PART - 1, #list)))
  end
end
