"""The loader of Lua scripts: constants come from the rules, each file is included once, comments are not sent."""

import importlib
import re
from pathlib import Path

import pytest

from holdfast.engines.redis import script
from holdfast.engines.redis.scripts import SCRIPTS

LUA = Path(script.__file__).parent / "lua"
FILES = sorted(LUA.rglob("*.lua"))
CONSTANT = re.compile(r"^\s*--@const (\w+) = ([\w.]+)\.(\w+)$", re.MULTILINE)
CONSTANTS = sorted({(found[2], found[3]) for file in FILES for found in CONSTANT.finditer(file.read_text())})
# The modules whose constants decide what a script does.
DEFINING = ("commands.lease", "commands.pool", "commands.queue", "commands.queue_admin", "rules.budget", "rules.lease",
            "rules.limit", "rules.once", "rules.pool", "rules.pool_state", "rules.queue.consistency",
            "rules.queue.consumers", "rules.queue.messages", "rules.queue.state", "rules.registry", "rules.rwlock",
            "rules.trust")  # fmt: skip
# Numbers that Lua needs for itself: units, sizes of calls, and lengths of a packed entry.
OWN_NUMBERS = {1000, 1_000_000, 1_000_000_000}


def module(path):
    return importlib.import_module(f"holdfast.{path}")


def code_of(file):
    """Return the text of a Lua file without comments and directives."""
    return re.sub(r"--[^\n]*", "", file.read_text(encoding="utf-8"))


def defined(kind):
    """Return the public constants of this type that rules and commands define, by module and name."""
    return {
        (path, name): value
        for path in DEFINING
        for name, value in vars(module(path)).items()
        if re.fullmatch(r"_?[A-Z][A-Z0-9_]*", name) and type(value) is kind
    }


@pytest.mark.parametrize(("path", "name"), CONSTANTS, ids=[f"{path}.{name}" for path, name in CONSTANTS])
def test_a_changed_constant_of_a_rule_changes_the_script(path, name, monkeypatch):
    """The Lua twin has no copy that someone could forget to change."""
    users = [each for each in SCRIPTS.values() if uses(each.file, path, name)]
    before = {each.file: each.text for each in users}
    value = getattr(module(path), name)

    monkeypatch.setattr(module(path), name, value + 1 if isinstance(value, int) else f"{value} changed")

    assert users
    assert all(script.script_text(f"{file}.lua") != text for file, text in before.items())


def uses(file, path, name):
    """Return whether a script, with its includes, names this constant."""
    text = (LUA / f"{file}.lua").read_text(encoding="utf-8")
    included = re.findall(r"--@(?:include|inline) (\S+)\.lua", text)
    return f"= {path}.{name}\n" in text or any(uses(each, path, name) for each in included)


@pytest.mark.parametrize("file", FILES, ids=[str(file.relative_to(LUA)) for file in FILES])
def test_no_lua_file_copies_a_constant_of_a_rule(file):
    """Neither a large number nor a sentence that a rule defines is written down in Lua."""
    numbers = {value for value in defined(int).values() if value >= 1000} - OWN_NUMBERS
    sentences = {value for value in defined(str).values() if " " in value or "_" in value}
    code = code_of(file)

    assert {int(found) for found in re.findall(r"(?<![\w.])\d+(?![\w.])", code)} & numbers == set()
    assert set(re.findall(r"'([^'\n]*)'", code)) & sentences == set()
    assert re.findall(r"^\s*local ([A-Z_]{3,}) = '", code, re.MULTILINE) == []


@pytest.mark.parametrize("file", sorted({each.file for each in SCRIPTS.values()}))
def test_no_file_is_included_twice_in_a_script(file):
    """A second copy would be sent to the server and run there for nothing. Inlined statements may be repeated."""
    text, functions = script.script_text(f"{file}.lua"), []
    for line in text.splitlines():
        functions += re.findall(r"^\s*local function (\w+)", line)

    assert sorted(functions) == sorted(set(functions))
    assert text.count("redis.call('TIME')") <= 1


# Scripts that only read; `registry/list` and `registry/fetch` also delete what is no longer needed.
READERS = (
    "counters/balance", "counters/is_done", "lease/show", "queue/check", "queue/consumers", "queue/dead_letters",
    "queue/keys", "queue/peek", "queue/stats",
)  # fmt: skip
READING = {"GET", "HEXISTS", "HGET", "HLEN", "HMGET", "HSCAN", "INFO", "LINDEX", "LLEN", "LRANGE", "TIME", "ZCARD",
           "ZMSCORE", "ZRANGE", "ZRANGEBYLEX", "ZRANGEBYSCORE", "ZRANK", "ZSCAN", "ZSCORE"}  # fmt: skip


@pytest.mark.parametrize("file", READERS)
def test_a_script_that_only_reads_carries_no_function_that_writes(file):
    """A script is sent whole to every server, so it includes only what it needs."""
    commands = set(re.findall(r"redis\.p?call\('(\w+)'", script.script_text(f"{file}.lua")))

    assert commands - READING == set()


def test_comments_are_not_sent_to_the_server():
    """They are for readers of the files; a server only hashes and stores them."""
    for each in SCRIPTS.values():
        assert "--" not in each.text, each.file
        assert "\n\n" not in each.text, each.file


def test_an_invalid_constant_line_is_an_error():
    """A misspelt directive would otherwise define nothing, and Lua would read nil."""
    with pytest.raises(ValueError, match=r"expected NAME = rules\.module\.NAME"):
        script.constant_line("OFFER_MAX_US")
    with pytest.raises(AttributeError):
        script.constant_line("OFFER_MAX_US = rules.lease.NO_SUCH_CONSTANT")
