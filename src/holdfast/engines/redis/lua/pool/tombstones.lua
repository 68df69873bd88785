-- The tombstones of a pool: tokens that ended, remembered so that a late copy of a command is refused.
--
-- KEYS, ARGV  those of pool/state.lua
--
-- Returns  nothing; it defines the functions find_tombstone, add_tombstone and not_held.
--
-- Twin of rules/lease_record.py: Tombstones.

--@const EXPIRED = rules.lease.EXPIRED
--@const TOMBSTONE_US = rules.lease.TOMBSTONE_US
local function find_tombstone(token)
  if tombstones_until <= now then return end
  local text = redis.call('GET', base .. ':ended:' .. token)
  if not text then return end
  local why, detail = string.match(text, '^(.-)\n(.*)$')
  return { why = why, detail = detail }
end

local function add_tombstone(token, lasts, why, detail)
  redis.call('SET', base .. ':ended:' .. token, why .. '\n' .. detail, 'PX', int(lasts / 1000))
  tombstones_until = math.max(tombstones_until, now + lasts)
end

local function not_held(token)
  local ended = find_tombstone(token)
  return ended and { 'not held', ended.why, ended.detail } or { 'not held', EXPIRED, '' }
end
