"""The minimal ACL rights of a user, as docs/redis.md lists them."""

# ACL SETUSER <name> on ><password> and this. `eval` is for a server that has forgotten the scripts; the commands
# after it are what the scripts call; the last ones are said when a connection opens. (redis-py also says CLIENT SETINFO
# and does without; Redis 7.0 does not know that word in a rule. `resetchannels` is for Redis 6.2, where a new user may
# use all channels.)
# The second key is the marker that clients of layout 1 read, and `scan` finds their data.
KEYS = ("~hf2:*", "~hf1:layout")
CHANNELS = ("resetchannels", "&hf2:wake:*")
COMMANDS = (
    "+evalsha", "+eval",
    "+time", "+get", "+set", "+del", "+pexpire", "+zrange", "+zrangebyscore", "+zscore", "+zrank", "+zadd", "+zrem",
    "+zcard", "+hget", "+hmget", "+hset", "+hdel", "+rpush", "+publish",
    "+blpop", "+subscribe", "+select", "+client|setname", "+info", "+scan",
)  # fmt: skip
# What pools, semaphores and read-write locks need beyond that.
FOR_POOLS = ("+hkeys", "+hgetall", "+hexists", "+hincrby", "+hlen", "+persist", "+zmscore")
# What directories need beyond that; limits, budgets and what is done once need nothing more.
FOR_REGISTRIES = ("+zrangebylex", "+hgetall", "+llen", "+lrange", "+ltrim")
# What queues need beyond that.
FOR_QUEUES = (
    "+exists", "+hexists", "+hlen", "+hscan", "+lindex", "+llen", "+lrange", "+lrem", "+ltrim", "+zmscore",
    "+zpopmin", "+zrangebylex", "+zscan",
)  # fmt: skip
# What the promise and `confirm` need beyond that.
TO_SEE, TO_CONFIRM = "+config|get", "+wait"


def grant(servers, *rights):
    """Create the same user on each of these servers; each has its own ACL."""
    for server in servers:
        server.command("ACL", "SETUSER", "app", "reset", "on", ">pw", *rights)
