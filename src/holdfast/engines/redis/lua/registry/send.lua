-- Add a message to the mailbox of the entry's owner, and wake the owner.
--
-- KEYS[1]   record of the entry
-- ARGV[1…2] as lease/record.lua
-- ARGV[3]   message id
-- ARGV[4]   text
--
-- Returns  {'done'} | {'not held', reason, ''} | {'at capacity', messages}
--
-- Twin of rules/registry.py: send_to_owner.

--@include lease/record.lua
--@include registry/keys.lua
--@const NO_OWNER = rules.registry.NO_OWNER
--@const MAILBOX_MAX = rules.registry.MAILBOX_MAX
--@const MAILBOX_MS = rules.registry.MAILBOX_MS
if not holder_token or expires <= now or offered then return { 'not held', NO_OWNER, '' } end
local mailbox = registry .. ':mailbox:' .. holder_token
if redis.call('LLEN', mailbox) >= MAILBOX_MAX then return { 'at capacity', MAILBOX_MAX } end
redis.call('RPUSH', mailbox, ARGV[3] .. '\n' .. ARGV[4])
redis.call('PEXPIRE', mailbox, MAILBOX_MS)
redis.pcall('PUBLISH', client, holder_token)  -- last: without the right to publish, the owner only reads the message late
return { 'done' }
