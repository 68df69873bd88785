"""What an error means for the way of a command: decided once, by a function that only reads."""

import pytest

from holdfast.engines.redis.redirects import ASK, GO, LOOK, STOP, WAIT, Redirect, Redirected, turn
from holdfast.errors import MOVING, ReplyLost, Unavailable

INNER = (
    "ERR Error running script (call to f_ab): @user_script:88: -READONLY You can't write against a read only replica."
)


def astray(reply):
    error = Redirected("redis", "other topology", reply)
    error.reply = reply
    return error


@pytest.mark.parametrize(
    ("reply", "way"),
    [
        ("MOVED 3999 127.0.0.1:6381", Redirect(GO, 3999, "127.0.0.1", 6381)),
        ("MOVED 3999 :6381", Redirect(GO, 3999, "", 6381)),
        ("MOVED 3999 redis-2.example:6381", Redirect(GO, 3999, "redis-2.example", 6381)),
        ("MOVED 3999 fe80::1:6381", Redirect(GO, 3999, "fe80::1", 6381)),
        ("MOVED 3999 [fe80::1]:6381", Redirect(GO, 3999, "fe80::1", 6381)),
        ("MOVED 3999 ?:6381", Redirect(LOOK)),
        ("MOVED somewhere", Redirect(LOOK)),
        ("ASK 12 127.0.0.1:6381", Redirect(ASK, 12, "127.0.0.1", 6381)),
        ("TRYAGAIN Multiple keys request during rehashing of slot", Redirect(WAIT)),
        ("CLUSTERDOWN The cluster is down", Redirect(LOOK)),
        ("CLUSTERDOWN Hash slot not served", Redirect(LOOK)),
        ("READONLY You can't write against a read only replica.", Redirect(LOOK)),
        (INNER, Redirect(LOOK)),
        ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", Redirect(LOOK)),
        ("NOREPLICAS Not enough good replicas to write.", Redirect(LOOK)),
        ("LOADING Redis is loading the dataset in memory", Redirect(LOOK)),
        ("UNBLOCKED force unblock from blocking operation, instance state changed", Redirect(LOOK)),
        ("OOM command not allowed when used memory > 'maxmemory'.", Redirect(STOP)),
        ("NOPERM this user has no permissions", Redirect(STOP)),
        ("ERR unknown command", Redirect(STOP)),
    ],
)
def test_an_error_reply_says_where_a_command_goes_next(reply, way):
    """It was not applied, so it may be sent again; where, and whether that helps, is in its first word."""
    assert turn(astray(reply)) == way


@pytest.mark.parametrize(
    ("trouble", "step"),
    [
        (ReplyLost("redis", "reply lost"), STOP),
        (ReplyLost("redis", MOVING), STOP),
        (Unavailable("redis", MOVING), LOOK),
        (Unavailable("redis", "unreachable"), STOP),
        (Unavailable("redis", "no permission"), STOP),
        (Unavailable("redis", "full"), STOP),
    ],
)
def test_what_may_have_been_applied_is_the_business_of_the_core(trouble, step):
    """Only the core may send a command twice: it remembers that, and has the token buried at its release."""
    assert turn(trouble).step == step
