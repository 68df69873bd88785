"""The configuration of a store: an explicit mode, and no placeholder is resolved without need."""

from datetime import timedelta
from itertools import product

import pytest

from holdfast import InvalidConfig
from holdfast.contrib.lancedb import MODES, URL_VARIABLE, settings

PLACE = "/srv/memory"


def read(config, **environ):
    return settings.read(config, PLACE, environ)


def redis(**locking):
    return {"locking": {"mode": "redis", **locking}}


@pytest.mark.acceptance("A0-23")
@pytest.mark.parametrize(
    ("enabled", "nested", "older", "variable", "placeholder_is_set"), list(product([True, False], repeat=5))
)
def test_every_mix_of_url_switch_environment_and_placeholder(enabled, nested, older, variable, placeholder_is_set):
    """The first of three URLs counts, the later ones are not resolved, and the off switch wins."""
    config = {"locking": {"mode": "redis", "enabled": enabled}}
    environ = {}
    if nested:
        config["locking"]["url"] = "redis://${HOST}/1"
    if older:
        config["redis_url"] = "redis://${HOST}/2"
    if variable:
        environ[URL_VARIABLE] = "redis://named/3"
    if placeholder_is_set:
        environ["HOST"] = "found"

    needs_placeholder = enabled and (nested or older)
    if not enabled:
        assert (read(config, **environ).mode, read(config, **environ).url) == ("off", None)
    elif (needs_placeholder and not placeholder_is_set) or not (nested or older or variable):
        with pytest.raises(InvalidConfig):
            read(config, **environ)
    else:
        expected = "redis://found/1" if nested else "redis://found/2" if older else "redis://named/3"
        assert read(config, **environ).url == expected


@pytest.mark.acceptance("A0-23")
@pytest.mark.parametrize("config", [{}, {"locking": {}}, {"redis_url": "redis://x"}, redis(mode="on"), "fast", None, 7])
def test_a_missing_mode_is_never_guessed(config):
    """Neither a URL nor a variable chooses the mode."""
    with pytest.raises(InvalidConfig):
        read(config, **{URL_VARIABLE: "redis://named"})


def test_each_mode_has_its_location():
    """Modes without a server keep the leases in the directory itself, so that all its users share them."""
    assert [read(mode).url for mode in MODES if mode != "redis"] == [
        None,
        f"sqlite://{PLACE}/.holdfast.db",
        f"file://{PLACE}",
    ]
    assert read({"locking": {"mode": "file", "url": "file:///shared"}}).url == "file:///shared"
    for url in ("valkey://x", "rediss://x", "redis+sentinel://x", "redis+cluster://x", "unix:///x.sock"):
        assert read(redis(url=url)).url == url


@pytest.mark.parametrize(
    "config",
    [
        redis(url="sqlite:///x.db"),
        redis(url="file:///x"),
        redis(url="memory://"),
        {"locking": {"mode": "file", "url": "redis://x"}},
        {"locking": {"mode": "embedded", "url": "file:///x"}},
        redis(url=7),
    ],
)
def test_a_url_of_another_mode_is_refused(config):
    """Two settings that name different domains contain a mistake."""
    with pytest.raises(InvalidConfig):
        read(config)


@pytest.mark.parametrize("where", ["", "locking", "batching", "maintenance"])
def test_unknown_keys_are_refused_at_every_level(where):
    """An ignored setting would hide a mistake. The error does not repeat its value."""
    config = {"locking": {"mode": "embedded"}, "batching": {}, "maintenance": {}}
    (config[where] if where else config)["redisUrl"] = "redis://:hush@x"

    with pytest.raises(InvalidConfig) as refused:
        read(config)

    assert "redisUrl" in str(refused.value)
    assert "hush" not in str(refused.value)


def test_numbers_may_be_text_and_may_come_from_the_environment():
    """Environment variables are text. A zero stays a zero."""
    config = {
        "locking": {"mode": "embedded", "ttl": "${TTL}", "timeout": "0"},
        "batching": {"batch": "10", "queue": 20, "window": "0.5", "hold": 2},
        "read_consistency": "0",
        "fold_after": 0,
        "stop_after": "5",
    }

    read_ = read(config, TTL="12.5")

    assert (read_.ttl, read_.timeout, read_.batch, read_.queue) == (12.5, 0, 10, 20)
    assert (read_.window, read_.hold, read_.stop_after) == (0.5, 2, 5)
    assert (read_.read_consistency, read_.fold_after) == (0, 0)


@pytest.mark.parametrize(
    "config",
    [
        {"locking": {"mode": "embedded", "ttl": "soon"}},
        {"locking": {"mode": "embedded", "ttl": 0}},
        {"locking": {"mode": "embedded", "ttl": True}},
        {"locking": {"mode": "embedded", "ttl": "${UNSET}"}},
        {"locking": {"mode": "embedded", "timeout": -1}},
        {"locking": {"mode": "embedded", "enabled": "yes"}},
        {"locking": {"mode": "embedded"}, "batching": {"batch": 0}},
        {"locking": {"mode": "embedded"}, "batching": {"queue": "inf"}},
        {"locking": {"mode": "embedded"}, "maintenance": {"enabled": 1}},
        {"locking": []},
    ],
)
def test_invalid_values_are_refused(config):
    """The error comes before any I/O and names the setting."""
    with pytest.raises(InvalidConfig):
        read(config)


def test_a_switched_off_lock_resolves_nothing():
    """An outdated placeholder of an unused lock must not break a start."""
    config = {
        "locking": {"enabled": False, "mode": "redis", "url": "${GONE}", "ttl": "${GONE}"},
        "redis_url": "${GONE}",
    }

    assert read(config).mode == "off"


def test_maintenance_is_off_unless_asked_for_and_its_retention_is_bounded():
    """A missing retention must not delete versions."""
    on = {"locking": {"mode": "off"}, "maintenance": {"enabled": True}}

    assert read("off").schedule is None
    assert read(on).schedule == (24 * 3600, 300, timedelta(days=7))
    for days, kept in ((0, 1), (99_999, 3650), ("30", 30)):
        on["maintenance"]["retention_days"] = days
        assert read(on).schedule.retention == timedelta(days=kept)


def test_a_password_is_never_shown():
    """Neither the settings nor an error show it."""
    assert "hush" not in repr(read(redis(url="redis://ann:hush@host/0")))
    with pytest.raises(InvalidConfig) as refused:
        read({"locking": {"mode": "file", "url": "redis://ann:hush@host/0"}})

    assert "hush" not in str(refused.value)
