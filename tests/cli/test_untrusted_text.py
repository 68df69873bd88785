"""Text of others on the command line: names, labels, reasons, keys, bodies, headers and holders."""

import json
import logging

import pytest

import holdfast
from holdfast.cli.app import main
from holdfast.commands import Acquire
from holdfast.core.step import run
from holdfast.testing.conformance.test_text_laws import HOSTILE

TEXT = "".join(HOSTILE.values())
DEEP = '{"host":"h","pid":1,"start":1,"label":"l","info":' + "[" * 5000 + "]" * 5000 + "}"


@pytest.fixture
def url(tmp_path, monkeypatch):
    log = logging.getLogger("holdfast")
    monkeypatch.setattr(log, "propagate", log.propagate)
    return f"sqlite://{tmp_path}/x.db"


@pytest.fixture
def filled(url):
    """An engine in which others have written."""
    with holdfast.connect(url, label=TEXT, info={"a": TEXT}) as client:
        queue = client.queue("jobs")
        queue.publish({"body": TEXT}, headers={"h": TEXT}, key=TEXT)
        queue.publish("[" * 20, key="dead")
        with queue.consumer() as consumer:
            for _ in range(2):
                (message,) = consumer.receive(timeout=5)
                message.reject(TEXT[:500])
        queue.publish({"body": TEXT}, headers={"h": TEXT}, key=TEXT)
        deep = client.queue("jobs", codec="bytes")
        deep.publish(b"[" * 20_000 + b"]" * 20_000)
        client.pool(TEXT).set_items([TEXT])
        with client.lock(TEXT), client.registry(TEXT).claim(TEXT, info={"a": TEXT}):
            run(client._client.transport.apply(Acquire("deep", "t", DEEP, 60_000, wait=False), 1 << 62))
            yield client


@pytest.mark.finding("S11")
@pytest.mark.parametrize("as_json", [False, True])
def test_no_command_prints_a_character_that_a_terminal_obeys(url, filled, capfd, as_json):
    """Also `--json`: people read it on a terminal, and JSON can escape every character."""
    letter = filled.queue("jobs").dlq.list(10)[0]
    commands = [
        ["ls"], ["show", TEXT], ["show", "deep"], ["watch", "--count", "1"], ["pool", "ls"], ["pool", "show", TEXT],
        ["registry", "ls", TEXT], ["registry", "show", TEXT, TEXT], ["queue", "ls"], ["queue", "peek", "jobs"],
        ["dlq", "ls", "jobs"], ["dlq", "show", "jobs", letter.id], ["show", f"none{TEXT}"], ["ls", f"none{TEXT}"],
    ]  # fmt: skip
    for command in commands:
        code = main([*command, "--url", url, *(["--json"] if as_json else [])])
        out, err = capfd.readouterr()
        assert code in (0, 1, 66, 69), (command, code, err)
        assert "a bug in holdfast" not in err
        bad = {sign for sign in out + err if not sign.isprintable() and sign != "\n"}
        assert bad == set(), command
        if as_json and out:
            assert json.loads(out) is not None


@pytest.mark.finding("S11")
def test_json_keeps_the_text_that_it_escapes(url, filled, capfd):
    """The escapes are JSON's own, so a program reads the name itself."""
    assert main(["ls", "--url", url, "--json"]) == 0
    out, _ = capfd.readouterr()

    names = {each["name"]: each for each in json.loads(out)["names"]}
    assert set(names) == {TEXT, "deep"}
    assert names[TEXT]["holder"]["label"] == TEXT
    assert "forged" in out
    assert all(len(line) > 0 and line.isprintable() for line in out.splitlines())
