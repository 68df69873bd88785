"""From the facts about a server to the promise of the engine: one table of rules.

Each rule has a condition over the facts. If it holds, the rule gives the strongest level that can be promised, whether
fences can go back, the reason, and what would change it. The promise is the weakest level of all rules that apply. An
unknown fact counts as the worse value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.engines.redis.server_info import NOT_DURING_REWRITE
from holdfast.rules.promise import CLIENTS, EFFICIENCY, LEVELS, RESTART, Caveat, Promise, weaker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.engines.redis.server_info import ServerFacts

_TESTS = "tests/engines/redis"

_RESTARTED = Caveat(
    "a server that restarts without its data has forgotten its leases: holders learn it within about a second",
    f"{_TESTS}/test_restart.py::test_a_restart_without_data_tells_holders_and_repeats_no_fence",
)
_FAILED_OVER = Caveat(
    "a failover to a replica without the last grant lets a second holder in",
    f"{_TESTS}/test_not_promised.py::test_a_failover_that_lost_the_grant_lets_a_second_holder_in",
)
_LATE_CLOCK = Caveat(
    "a failover to a replica whose clock is behind gives smaller fences; a guard refuses them until it has caught up",
    f"{_TESTS}/test_clock.py::test_a_failover_to_a_clock_that_is_behind_gives_smaller_fences",
)
_EVICTED = Caveat(
    "a memory policy that evicts keys evicts leases",
    f"{_TESTS}/test_not_promised.py::test_a_server_that_evicts_lets_a_second_holder_in",
)
_FORWARD = Caveat(
    "a server clock that is set forward ends leases early and lets a second holder in, under a larger fence; the"
    " next renewal notices and reports it",
    "tests/testing/test_places.py::test_a_server_whose_clock_is_set_forward_lets_a_second_holder_in",
)
_BACK = Caveat(
    "a server clock that is set back by more than fence_memory lets forgotten names start again with smaller fences",
    f"{_TESTS}/test_clock.py::test_a_clock_set_back_by_more_than_the_memory_lets_fences_go_back",
)
_OLDER_DATA = Caveat(
    "the keys were not searched for data of an older layout: clients of an older version of holdfast and of this one"
    " would not exclude each other",
    f"{_TESTS}/test_old_layout.py::test_without_the_right_to_scan_the_promise_has_a_caveat",
)


class PromiseRule(NamedTuple):
    """If `applies` is true of the facts, the engine promises at most the level `most`, for that reason."""

    applies: Callable[[ServerFacts], bool]
    most: str
    reason: str
    change: str = ""
    caveats: tuple[Caveat, ...] = ()
    fences_grow: bool = True


def _may_evict(facts: ServerFacts) -> bool:
    return facts.maxmemory != 0 and facts.maxmemory_policy != "noeviction"


def _has_replicas(facts: ServerFacts) -> bool:
    return bool(facts.replicas) or facts.known > 0


_GRANT_INFO = "grant the right: ACL SETUSER ... +info"


TABLE = (
    PromiseRule(
        lambda facts: facts.role == "replica",
        EFFICIENCY,
        "this server is a replica: it refuses grants, or stores them where its primary does not see them",
        "connect to the primary",
    ),
    PromiseRule(
        lambda facts: facts.role is None,
        EFFICIENCY,
        "whether this server is a primary was not seen",
        _GRANT_INFO,
    ),
    PromiseRule(
        lambda facts: _may_evict(facts) and facts.maxmemory_policy is not None and facts.maxmemory is not None,
        EFFICIENCY,
        "under memory pressure this server deletes leases (maxmemory-policy {facts.maxmemory_policy})",
        "set maxmemory-policy noeviction, or use a separate server for leases",
        (_EVICTED,),
    ),
    PromiseRule(
        lambda facts: _may_evict(facts) and (facts.maxmemory_policy is None or facts.maxmemory is None),
        EFFICIENCY,
        "whether this server deletes leases under memory pressure was not seen",
        _GRANT_INFO,
        (_EVICTED,),
    ),
    PromiseRule(
        lambda facts: facts.jumped_s > 0,
        EFFICIENCY,
        "the clock of this server was seen to jump forward by {facts.jumped_s:.1f} s: leases ended early",
        "configure its clock to be slewed, not stepped",
    ),
    PromiseRule(
        lambda facts: facts.jumped_back_s > facts.fence_memory_s,
        LEVELS[-1],
        "the clock of this server was seen to jump back by {facts.jumped_back_s:.1f} s, more than fence_memory",
        "configure its clock to be slewed, not stepped; or connect with a longer fence_memory",
        fences_grow=False,
    ),
    PromiseRule(
        lambda facts: facts.cluster is True,
        CLIENTS,
        "a part of a cluster that is cut off continues to grant leases for the node timeout",
        caveats=(_FAILED_OVER, _LATE_CLOCK),
        fences_grow=False,
    ),
    PromiseRule(
        lambda facts: facts.cluster is True and not facts.grouped,
        LEVELS[-1],
        "this is one server of a cluster: it refuses names that belong to another one",
        "connect to redis+cluster://",
    ),
    PromiseRule(
        lambda facts: facts.cluster is None,
        CLIENTS,
        "whether it is part of a cluster, where another server may replace it, was not seen",
        _GRANT_INFO,
        (_FAILED_OVER, _LATE_CLOCK),
        fences_grow=False,
    ),
    PromiseRule(
        lambda facts: facts.replicas == 0 and not _has_replicas(facts) and (facts.sentinels or facts.cluster is True),
        CLIENTS,
        "a replica, once it has one, may replace it (0 linked, 0 known): fences then come from another clock",
        caveats=(_FAILED_OVER, _LATE_CLOCK),
        fences_grow=False,
    ),
    PromiseRule(
        lambda facts: facts.replicas == 0 and (facts.known > 0 or facts.sentinels),
        CLIENTS,
        "no replica is linked: none could replace it",
        "start a replica of it",
    ),
    PromiseRule(
        lambda facts: facts.replicas is None or _has_replicas(facts),
        CLIENTS,
        "a replica may replace it ({linked} linked, {facts.known} known): a failover may forget the last grants,"
        " and fences then come from another clock",
        'use confirm="replicas" for each lock: its grants and renewals then survive a failover to any known replica',
        (_FAILED_OVER, _LATE_CLOCK),
        fences_grow=False,
    ),
    PromiseRule(
        lambda facts: _has_replicas(facts) and not facts.min_replicas,
        CLIENTS,
        "a primary that is cut off from its replicas may continue to grant (min-replicas-to-write {least})",
        "set min-replicas-to-write 1: then a primary that is cut off stops within min-replicas-max-lag",
    ),
    PromiseRule(
        lambda facts: facts.aof is None,
        CLIENTS,
        "whether it writes an append-only file was not seen",
        _GRANT_INFO,
        (_RESTARTED,),
    ),
    PromiseRule(
        lambda facts: facts.aof is False,
        CLIENTS,
        "it writes no append-only file, so a restart forgets its leases",
        "set appendonly yes and appendfsync always",
        (_RESTARTED,),
    ),
    PromiseRule(
        lambda facts: bool(facts.aof) and facts.appendfsync is None,
        CLIENTS,
        "whether every grant is flushed to its append-only file was not seen (appendfsync not seen)",
        "grant the right: ACL SETUSER ... +config|get",
        (_RESTARTED,),
    ),
    PromiseRule(
        lambda facts: bool(facts.aof) and facts.appendfsync not in ("always", NOT_DURING_REWRITE, None),
        CLIENTS,
        "its append-only file is not flushed with every grant (appendfsync {fsync}): a power cut forgets the last ones",
        "set appendfsync always",
        (_RESTARTED,),
    ),
    PromiseRule(
        lambda facts: bool(facts.aof) and facts.appendfsync == NOT_DURING_REWRITE,
        CLIENTS,
        "its append-only file is not flushed while the server rewrites it or saves a snapshot"
        " (no-appendfsync-on-rewrite yes): a power cut then forgets the last grants",
        "set no-appendfsync-on-rewrite no",
        (_RESTARTED,),
    ),
    PromiseRule(
        lambda facts: bool(facts.aof) and facts.appendfsync == "always",
        RESTART,
        "every grant is on its disk before it is answered (appendfsync always)",
    ),
)


def promised(facts: ServerFacts) -> Promise:
    """Return the promise for a server with these facts."""
    rules = [rule for rule in TABLE if rule.applies(facts)]
    level = RESTART
    for rule in rules:
        level = weaker(level, rule.most)
    values = {
        "facts": facts,
        "linked": "not seen whether any are" if facts.replicas is None else facts.replicas,
        "least": _or_not_seen(facts.min_replicas),
        "fsync": facts.appendfsync,
    }
    caveats = [caveat for rule in rules for caveat in rule.caveats] + [_FORWARD, _BACK]
    kept = facts._replace(jumped_s=round(facts.jumped_s, 1), jumped_back_s=round(facts.jumped_back_s, 1))._asdict()
    del kept["unseen"], kept["grouped"]
    return Promise(
        engine="redis",
        scope="hosts",
        level=level,
        fifo=True,
        fences_grow=all(rule.fences_grow for rule in rules),
        reasons=(
            "each command is one script on one server, by the server's clock",
            *(rule.reason.format(**values) for rule in rules),
        ),
        caveats=tuple(dict.fromkeys(caveats)),
        unseen=facts.unseen,
        changes=tuple(dict.fromkeys(rule.change for rule in rules if rule.change)),
        facts=tuple(kept.items()),
    )


def promised_by_all(seen: Sequence[tuple[str, ServerFacts]]) -> Promise:
    """Return the promise for servers that share the names: the weakest server decides, and the reasons name it."""
    if len(seen) == 1:
        return promised(seen[0][1])
    each = [(url, promised(facts)) for url, facts in seen]
    url, weakest = min(each, key=lambda one: (LEVELS.index(one[1].level), one[1].fences_grow))
    alike = len({promise.level for _, promise in each}) == 1
    decides = "are alike" if alike else f"are not alike: the weakest decides, and that is {url}"
    return weakest._replace(
        fences_grow=all(promise.fences_grow for _, promise in each),
        reasons=(
            f"the names are shared by {len(each)} servers, which {decides}",
            *_merged([(url, promise.reasons) for url, promise in each]),
        ),
        caveats=tuple(dict.fromkeys(caveat for _, promise in each for caveat in promise.caveats)),
        unseen=_merged([(url, promise.unseen) for url, promise in each]),
        changes=_merged([(url, promise.changes) for url, promise in each]),
        facts=(("servers", ", ".join(url for url, _ in each)), *_facts_of_all([dict(one.facts) for _, one in each])),
    )


def without_layout_check(promise: Promise, why: str) -> Promise:
    """Return the promise for servers whose keys could not be searched for data of an older layout."""
    return promise._replace(
        caveats=(*promise.caveats, _OLDER_DATA),
        unseen=(*promise.unseen, f"data of an older layout: {why}"),
        changes=(*promise.changes, "grant the right: ACL SETUSER ... +scan"),
    )


def _merged(by_server: Sequence[tuple[str, tuple[str, ...]]]) -> tuple[str, ...]:
    """Return each sentence once; a sentence that is true of some servers only begins with the URLs of those servers."""
    merged: dict[str, list[str]] = {}
    for url, sentences in by_server:
        for sentence in sentences:
            merged.setdefault(sentence, []).append(url)
    return tuple(
        sentence if len(urls) == len(by_server) else f"{', '.join(urls)}: {sentence}"
        for sentence, urls in merged.items()
    )


def _facts_of_all(facts: Sequence[dict[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield each fact once if it is the same on all servers; otherwise all values, in the order of the servers."""
    for what in facts[0]:
        values = [each[what] for each in facts]
        yield what, values[0] if len(set(values)) == 1 else " / ".join(str(_or_not_seen(value)) for value in values)


def _or_not_seen(fact: object) -> object:
    return "not seen" if fact is None else fact
