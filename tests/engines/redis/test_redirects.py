"""The next step after an error reply: decided once, by a pure function."""

import pytest

from holdfast.engines.redis.redirects import ASK, FAIL, MOVED, REFRESH, RETRY, Redirect, Redirected, redirect_of
from holdfast.errors import MOVING, ReplyLost, Unavailable

INNER = (
    "ERR Error running script (call to f_ab): @user_script:88: -READONLY You can't write against a read only replica."
)


def redirected(reply):
    error = Redirected("redis", "other topology", reply)
    error.reply = reply
    return error


@pytest.mark.parametrize(
    ("reply", "redirect"),
    [
        ("MOVED 3999 127.0.0.1:6381", Redirect(MOVED, 3999, "127.0.0.1", 6381)),
        ("MOVED 3999 :6381", Redirect(MOVED, 3999, "", 6381)),
        ("MOVED 3999 redis-2.example:6381", Redirect(MOVED, 3999, "redis-2.example", 6381)),
        ("MOVED 3999 fe80::1:6381", Redirect(MOVED, 3999, "fe80::1", 6381)),
        ("MOVED 3999 [fe80::1]:6381", Redirect(MOVED, 3999, "fe80::1", 6381)),
        ("MOVED 3999 ?:6381", Redirect(REFRESH)),
        ("MOVED somewhere", Redirect(REFRESH)),
        ("ASK 12 127.0.0.1:6381", Redirect(ASK, 12, "127.0.0.1", 6381)),
        ("TRYAGAIN Multiple keys request during rehashing of slot", Redirect(RETRY)),
        ("CLUSTERDOWN The cluster is down", Redirect(REFRESH)),
        ("CLUSTERDOWN Hash slot not served", Redirect(REFRESH)),
        ("READONLY You can't write against a read only replica.", Redirect(REFRESH)),
        (INNER, Redirect(REFRESH)),
        ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", Redirect(REFRESH)),
        ("NOREPLICAS Not enough good replicas to write.", Redirect(REFRESH)),
        ("LOADING Redis is loading the dataset in memory", Redirect(REFRESH)),
        ("UNBLOCKED force unblock from blocking operation, instance state changed", Redirect(REFRESH)),
        ("OOM command not allowed when used memory > 'maxmemory'.", Redirect(FAIL)),
        ("NOPERM this user has no permissions", Redirect(FAIL)),
        ("ERR unknown command", Redirect(FAIL)),
    ],
)
def test_an_error_reply_determines_the_next_step(reply, redirect):
    """The command was not applied, so it may be sent again; the code of the reply says where, and whether it helps."""
    assert redirect_of(redirected(reply)) == redirect


@pytest.mark.parametrize(
    ("error", "step"),
    [
        (ReplyLost("redis", "reply lost"), FAIL),
        (ReplyLost("redis", MOVING), FAIL),
        (Unavailable("redis", MOVING), REFRESH),
        (Unavailable("redis", "unreachable"), FAIL),
        (Unavailable("redis", "no permission"), FAIL),
        (Unavailable("redis", "full"), FAIL),
    ],
)
def test_only_the_core_resends_a_command_that_may_have_been_applied(error, step):
    """The core remembers that it sent the command twice, and leaves a tombstone for the token when it releases."""
    assert redirect_of(error).step == step
