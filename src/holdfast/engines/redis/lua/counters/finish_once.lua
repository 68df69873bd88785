-- Release the lease and store the marker that its work was done, if the caller's token holds the lease.
--
-- KEYS[1]  record  and beside it :o, a string that expires: the marker
-- ARGV[3]  token
-- ARGV[4]  options    as lease/release.lua
-- ARGV[5]  marker
-- ARGV[6]  window_ms
--
-- Returns  as lease/release.lua
--
-- Twin of rules/once.py: finish. Only the copy of the command that releases stores the marker: a later copy must not
-- restore a marker that was deleted since.

--@include lease/record.lua
if holder_token == ARGV[3] and expires > now and not offered then
  redis.call('DEL', base .. ':-')  -- a key that never exists: at maxmemory the first write must be one that frees memory
  redis.call('SET', base .. ':o', ARGV[5], 'PX', ARGV[6])
end
--@include lease/release.lua
