"""The promise follows from the facts that were seen, and from nothing else; and how promises compare."""

import itertools
import json

import pytest

from holdfast import InvalidConfig
from holdfast.engines.redis.promise import promised, promised_by_all
from holdfast.engines.redis.server_info import NOT_DURING_REWRITE, ServerFacts
from holdfast.engines.sqlite.promise import promised as promised_by_file
from holdfast.rules.promise import LEVELS, SCOPES, WORDS, difference, missing, required

# Everything that a rule can tell apart.
DOMAIN = {
    "role": ("primary", "replica", None),
    "replicas": (0, 1, None),
    "known": (0, 2),
    "aof": (True, False, None),
    "appendfsync": ("always", NOT_DURING_REWRITE, "everysec", None),
    "maxmemory": (0, 1_000_000, None),
    "maxmemory_policy": ("noeviction", "volatile-ttl", None),
    "min_replicas": (0, 1, None),
    "cluster": (False, True, None),
    "jumped_s": (0.0, 20.0),
    "jumped_back_s": (20.0, 3600.0),
}
NOT_SEEN = {"role", "replicas", "aof", "appendfsync", "maxmemory", "maxmemory_policy", "min_replicas", "cluster"}


def every():
    for values in itertools.product(*DOMAIN.values()):
        yield ServerFacts(**dict(zip(DOMAIN, values, strict=True)))


def rank(promise):
    return LEVELS.index(promise.level)


@pytest.fixture(scope="module")
def table():
    """Return every promise that there can be, by its facts."""
    return {facts: promised(facts) for facts in every()}


def test_the_level_follows_from_the_facts(table):
    """Written a second time in another way: what each level needs, over every combination of facts."""
    for facts, promise in table.items():
        evicts = facts.maxmemory != 0 and facts.maxmemory_policy != "noeviction"
        clients = facts.role == "primary" and not evicts and facts.jumped_s == 0
        alone = facts.replicas == 0 and facts.known == 0 and facts.cluster is False
        restart = clients and alone and facts.aof is True and facts.appendfsync == "always"

        assert promise.level == LEVELS[2 if restart else 1 if clients else 0], facts


def test_fences_are_promised_only_where_one_clock_makes_them(table):
    """Another server may be promoted, with another clock; and a clock that went back beyond the memory was seen."""
    for facts, promise in table.items():
        alone = facts.replicas == 0 and facts.known == 0 and facts.cluster is False

        assert promise.fences_grow == (alone and facts.jumped_back_s != 3600.0), facts


def test_an_unseen_fact_counts_as_the_worse_one(table):
    """Missing knowledge never promises more than any knowledge would."""
    for facts, blind in table.items():
        unseen = [fact for fact in NOT_SEEN if getattr(facts, fact) is None]
        if len(unseen) == 1:
            seen = [table[facts._replace(**{unseen[0]: value})] for value in DOMAIN[unseen[0]]]

            assert rank(blind) == min(map(rank, seen)), facts
            assert blind.fences_grow == all(each.fences_grow for each in seen), facts


def test_an_unseen_fact_is_not_stated_as_a_fact(table):
    """A reason is either true whatever the fact is, or states that the fact was not seen."""
    for facts, blind in table.items():
        unseen = [fact for fact in NOT_SEEN if getattr(facts, fact) is None]
        if len(unseen) == 1:
            answers = [value for value in DOMAIN[unseen[0]] if value is not None]
            sure = set.intersection(*(set(table[facts._replace(**{unseen[0]: each})].reasons) for each in answers))

            assert [reason for reason in blind.reasons if reason not in sure and "not seen" not in reason] == [], facts


def test_a_weaker_promise_explains_why_and_what_to_change(table):
    """An operator cannot change a level without its reason."""
    for facts, promise in table.items():
        assert len(promise.reasons) > 1, facts
        if promise.level != "survives restart" and facts.cluster is False:
            assert promise.changes != (), facts
        for text in (*promise.reasons, *promise.changes):
            assert "{" not in text, facts
            assert "None" not in text, facts


def test_the_advice_changes_the_promise():
    """Followed to the end, the advice gives the best that one server has."""
    worst = ServerFacts(
        role="replica", replicas=0, aof=False, appendfsync="no", maxmemory=1, maxmemory_policy="allkeys-lru",
        min_replicas=0, cluster=False,
    )  # fmt: skip
    steps = [
        ("connect to the primary", {"role": "primary"}),
        ("maxmemory-policy noeviction", {"maxmemory_policy": "noeviction"}),
        ("appendonly yes", {"aof": True}),
        ("appendfsync always", {"appendfsync": NOT_DURING_REWRITE}),
        ("no-appendfsync-on-rewrite no", {"appendfsync": "always"}),
    ]

    for advice, change in steps:
        assert any(advice in text for text in promised(worst).changes)
        worst = worst._replace(**change)

    assert promised(worst).level == "survives restart"
    assert promised(worst).changes == ()


def test_a_file_on_an_unknown_filesystem_is_not_relied_on():
    """It may be a network filesystem, where locks do not hold."""
    known, unknown = promised_by_file("ext4"), promised_by_file("")

    assert (known.level, known.unseen) == ("survives restart", ())
    assert unknown.level == "efficiency only"
    assert unknown.unseen != ()
    assert dict(known.facts) == {"filesystem": "ext4"}


@pytest.mark.parametrize("word", WORDS)
def test_a_requirement_is_met_by_itself_and_by_everything_stronger(word):
    """Levels and scopes are ordered; the other words hold or do not."""
    weakest = promised(ServerFacts())._replace(scope="process", fifo=False)
    for level, scope, fences, fifo in itertools.product(LEVELS, SCOPES, (False, True), (False, True)):
        promise = weakest._replace(level=level, scope=scope, fences_grow=fences, fifo=fifo)
        holds = {
            **{each: LEVELS.index(each) <= LEVELS.index(level) for each in LEVELS},
            **{each: SCOPES.index(each) <= SCOPES.index(scope) for each in SCOPES},
            "fences grow": fences,
            "fifo": fifo,
        }

        assert missing(promise, (word,)) == (() if holds[word] else (word,))


@pytest.mark.parametrize("wrong", ["survives everything", "", None, 3, ("hosts", "L2")])
def test_an_unknown_requirement_is_refused(wrong):
    """A word that is not checked would be a requirement that always holds."""
    with pytest.raises(InvalidConfig) as refusal:
        required(wrong)

    assert "survives restart" in str(refusal.value)


def test_a_change_is_reported_with_its_direction():
    """Weaker, stronger, or neither; and which fact it was."""
    plain = ServerFacts(
        role="primary", replicas=0, aof=False, maxmemory=1, maxmemory_policy="noeviction", cluster=False
    )
    evicting, replicated = plain._replace(maxmemory_policy="allkeys-lru"), plain._replace(replicas=1, known=1)

    assert difference(promised(plain), promised(plain)) == ""
    assert difference(promised(plain), promised(evicting)) == (
        "weaker: survives client faults -> efficiency only, maxmemory policy noeviction -> allkeys-lru"
    )
    assert difference(promised(evicting), promised(plain)).startswith("stronger: efficiency only -> ")
    assert difference(promised(plain), promised(replicated)).startswith("weaker: fences may go back, replicas 0 -> 1")
    gone = replicated._replace(replicas=0)
    assert difference(promised(replicated), promised(gone)) == "changed: replicas 1 -> 0"
    assert "not seen -> 1" in difference(promised(plain._replace(replicas=None)), promised(replicated))


def test_a_promise_can_be_read_by_people_and_by_programs():
    """Everything that is printed is in the dictionary, which JSON takes as it is."""
    promise = promised(ServerFacts(role="primary", unseen=("CONFIG GET appendfsync: NOPERM",)))
    values = json.loads(json.dumps(promise.as_dict()))

    assert values["level"] == promise.level
    assert values["facts"]["role"] == "primary"
    assert values["caveats"][0].keys() == {"sentence", "shown_by"}
    for text in (
        *values["reasons"],
        *values["unseen"],
        *values["changes"],
        *(each["sentence"] for each in values["caveats"]),
    ):
        assert text in str(promise)
    assert {*promise._fields} == values.keys()


SOUND = ServerFacts(role="primary", replicas=1, known=1, aof=True, appendfsync="always", maxmemory=0, cluster=True)


def test_of_several_servers_the_weakest_decides():
    """In whatever order they are seen. A reason of some servers names them; a reason of all is stated once."""
    evicts = SOUND._replace(maxmemory=1, maxmemory_policy="allkeys-lru")
    for servers in itertools.permutations([("redis://a", SOUND), ("redis://b", evicts), ("redis://c", SOUND)]):
        promise = promised_by_all(servers)

        assert promise.level == promised(evicts).level == "efficiency only"
        assert not promise.fences_grow
        assert sum("redis://b" in reason for reason in promise.reasons) == 2
        assert not any("redis://a" in reason or "redis://c" in reason for reason in promise.reasons)
        assert {*promise.caveats} == {*promised(SOUND).caveats, *promised(evicts).caveats}
        json.dumps(promise.as_dict())


def test_one_server_is_no_group():
    """One server has no reason about others; several equal ones are worth what each of them is."""
    assert promised_by_all([("redis://a", SOUND)]) == promised(SOUND)
    assert promised_by_all([("redis://a", SOUND), ("redis://b", SOUND)]).level == promised(SOUND).level


def test_a_replica_that_falls_away_from_any_server_is_a_change():
    """Not only from the one that decides: the next failover may need it."""
    before = promised_by_all([("redis://a", SOUND), ("redis://b", SOUND)])
    now = promised_by_all([("redis://a", SOUND), ("redis://b", SOUND._replace(replicas=0))])

    assert difference(before, now) == "changed: replicas 1 -> 1 / 0"


def test_confirmation_by_replicas_is_not_advised_where_there_are_none():
    """Every grant would be refused; and a server that must have a replica to write, and has none, stops."""
    for facts in every():
        if facts.replicas == 0 and facts.known == 0:
            for where in (facts, facts._replace(sentinels=True)):
                assert "replicas" not in "".join(promised(where).changes), where


def test_one_server_of_a_cluster_is_not_the_cluster():
    """It promises what it does, but refuses most names: the promise says so before the first lock."""
    lone = promised(SOUND._replace(grouped=False))

    assert "connect to redis+cluster://" in lone.changes
    assert "connect to redis+cluster://" not in promised(SOUND).changes
    assert "connect to redis+cluster://" not in promised(SOUND._replace(cluster=False, grouped=False)).changes


def test_sentinels_may_put_another_server_in_its_place():
    """Also one that this client has never seen: whether replicas are linked just now does not matter."""
    alone = SOUND._replace(replicas=0, known=0, cluster=False)

    assert (promised(alone).level, promised(alone).fences_grow) == ("survives restart", True)
    watched = promised(alone._replace(sentinels=True))
    assert (watched.level, watched.fences_grow) == ("survives client faults", False)


@pytest.mark.parametrize("known", [0, 2])
def test_sentinels_without_a_replica_are_reported(known):
    """All works as before, until the day on which another server would have to take its place."""
    facts = ServerFacts(role="primary", replicas=0, known=known, aof=False, cluster=False, sentinels=True)

    assert [text for text in promised(facts).reasons if "none could replace it" in text]
    assert "start a replica of it" in promised(facts).changes
    assert "start a replica of it" not in promised(facts._replace(replicas=1)).changes
    assert "start a replica of it" not in promised(facts._replace(known=0, sentinels=False)).changes
