-- The keys of a registry. All of them are in the slot of the registry's name.
--
-- KEYS[1]  the record of an entry, or the registry's own key
-- ARGV     those of the command that follows
--
-- Returns  nothing; it defines `registry`, the registry's own key. Behind it are:
--            :e:<entry>          record     of the entry's lease, as in lease/record.lua; `%` and `:` of the entry are escaped
--            :index:k            index      sorted set, all entries in order
--            :index:<other>      index      hash, entry -> token
--            :successor:<entry>  successor  string that expires: until_us, a space, the label of the successor
--            :mailbox:<token>    mailbox    list that expires: message id, a new line, text

local registry = string.match(KEYS[1], '^[^}]*}')

-- The fields of an entry's record, or nothing; then whether there is a record that cannot be read.
local function fields_of(key)
  local text = redis.pcall('GET', key)
  if not text then return end
  local fields = type(text) == 'string' and { pcall(cmsgpack.unpack, text) } or {}
  local readable = fields[1] == true and type(fields[2]) == 'number' and type(fields[3]) == 'string'
  if readable and fields[8] then
    readable = type(fields[8]) == 'string' and type(fields[10]) == 'number' and type(fields[12]) == 'number'
      and type(fields[13]) == 'number' and type(fields[15]) == 'string'
  end
  if not readable then return nil, true end
  return { unpack(fields, 2, 15) }
end

local function record_key(entry)
  return registry .. ':e:' .. string.gsub(string.gsub(entry, '%%', '%%25'), ':', '%%3A')
end
