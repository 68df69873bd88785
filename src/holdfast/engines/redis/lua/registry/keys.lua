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

local function record_key(entry)
  return registry .. ':e:' .. string.gsub(string.gsub(entry, '%%', '%%25'), ':', '%%3A')
end
