-- A client says that its waiters live. Offers that were made but not heard are told again.
--
-- KEYS[1]  the name's own key
-- ARGV     nothing more
--
-- Returns  {'marked', remaining_ms, token, all_ms}; 0 if nothing will come back; a token of the caller's that has an
--          offer
--
-- Same law as rules/pool.py: tend.

--@include pool/pool.lua
if queued_before then make_way() end  -- those who wait keep their places: at maxmemory too
settle()
local known, first = {}, nil
for _, call in ipairs(calls) do known[call[2]] = true end
if offers > 0 then
  local offered = redis.call('HGETALL', base .. ':o')
  for i = 1, #offered, 2 do
    local token, client = offered[i], offered[i + 1]
    if client == me then
      if not known[token] then ring(client, token, false) end
      if not first or token < first then first = token end
    end
  end
end
if waiting > 0 or offers > 0 then mark() end
local answer = { 'marked', next_ms(), first or '', all_ms() }
commit()
return answer
