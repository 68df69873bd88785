-- The tombstones of a name: tokens that ended, remembered so that a late copy of a command is refused.
--
-- KEYS[1]  record
-- ARGV     as in lease/record.lua
--
-- Returns  nothing; it defines the functions find_tombstone, add_tombstone and not_held for the command.
--
-- Twin of rules/lease_record.py: Tombstones. lease/commit.lua writes the added tombstone.

--@const EXPIRED = rules.lease.EXPIRED
local function find_tombstone(token)
  if tombstones_until <= now then return end
  local text = redis.call('GET', base .. ':ended:' .. token)
  if not text then return end
  local why, detail = string.match(text, '^(.-)\n(.*)$')
  return { why = why, detail = detail }
end

local function add_tombstone(token, lasts, why, detail)
  tombstone = { key = base .. ':ended:' .. token, text = why .. '\n' .. detail, lasts = int(lasts / 1000) }
  tombstones_until = math.max(tombstones_until, now + lasts)
  freeing = true
end

local function not_held(token)
  local ended = find_tombstone(token)
  return ended and { 'not held', ended.why, ended.detail } or { 'not held', EXPIRED, '' }
end
