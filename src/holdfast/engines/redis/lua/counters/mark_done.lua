-- Store a marker.
--
-- KEYS[1]  counter    string that expires: the marker
-- ARGV[1]  marker
-- ARGV[2]  window_ms
--
-- Returns  {'done'}
--
-- Twin of rules/once.py: mark_done.

redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return { 'done' }
