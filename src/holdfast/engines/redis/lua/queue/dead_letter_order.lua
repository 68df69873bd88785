-- The order of dead letters.
--
-- KEYS[1], ARGV[1…2]  as queue/state.lua
--
-- Returns  nothing; it defines the functions position_of_dead_letter and remove_position.
--
-- Twin of rules/queue/state.py: position_of_dead_letter. A dead letter is `died #reason`, a new line, reason, and the message.
-- Its position is the time of its death, with twenty digits, a dash and the id.

local old_positions = {}  -- positions to remove

local function position_of_dead_letter(died, id) return string.format('%020.0f', died) .. '-' .. id end

local function remove_position(id, dead_letter)
  old_positions[#old_positions + 1] = position_of_dead_letter(string.match(dead_letter, '^(%d+) '), id)
end
