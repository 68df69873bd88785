-- Cool an item down, or free it.
--
-- KEYS, ARGV  those of pool/state.lua
--
-- Returns  nothing; it defines the function cool_or_free.
--
-- Twin of rules/pool.py: _cool_or_free.

local function cool_or_free(name, item, cooldown_ms)
  if cooldown_ms == 0 then
    free(name, item)
    return offer_free_items()
  end
  clear_lease(item)
  item[STATE], item[BACK], item[COOLDOWN] = COOLING, now + cooldown_ms * 1000, cooldown_ms
  put(name, item)
  -- The item may come back earlier than any item that the first waiters know of, so they resend their commands.
  for _, first_waiter in ipairs(first_waiters()) do
    local waiter = waiter_of(first_waiter[2])
    wake(waiter[1], first_waiter[2], waiter[8])
  end
end
