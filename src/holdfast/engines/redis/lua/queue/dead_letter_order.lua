-- The order of dead letters.
--
-- KEYS[1], ARGV[1…2]  as queue/state.lua
--
-- Returns  nothing; it defines the functions dead_letter_position and remove_position.
--
-- Twin of rules/queue/state.py: dead_letter_position. A dead letter is `died #reason`, a new line, reason, and the message.
-- Its position is the time of its death, with twenty digits, a dash and the id.

local old_positions = {}  -- positions to remove

local function dead_letter_position(died, id) return string.format('%020.0f', died) .. '-' .. id end

local function remove_position(id, dead_letter)
  old_positions[#old_positions + 1] = dead_letter_position(string.match(dead_letter, '^(%d+) '), id)
end
