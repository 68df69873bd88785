-- Release, and leave a note that the work was done, if the lease was the caller's to give.
--
-- KEYS[1]  record  and beside it :o, a string: the note, which expires by itself
-- ARGV[3]  token
-- ARGV[4]  how        as lease/release.lua
-- ARGV[5]  note
-- ARGV[6]  window_ms
--
-- Returns  as lease/release.lua
--
-- Same law as rules/once.py: compound. The note is left by the copy that releases: a later one must not bring back what
-- was forgotten since.

--@include lease/record.lua
if holder == ARGV[3] and expires > now and not offered then
  redis.call('DEL', base .. ':-')  -- never there: at maxmemory the first write must be one that frees
  redis.call('SET', base .. ':o', ARGV[5], 'PX', ARGV[6])
end
--@include lease/release.lua
