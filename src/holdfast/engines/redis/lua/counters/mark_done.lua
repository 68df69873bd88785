-- Leave a note.
--
-- KEYS[1]  tally      string: the note
-- ARGV[1]  note
-- ARGV[2]  window_ms
--
-- Returns  {'done'}
--
-- Same law as rules/once.py: keep.

redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return { 'done' }
