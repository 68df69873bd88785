"""The one table of rules: every command has a rule, and every engine that runs rules dispatches every kind."""

from __future__ import annotations

import typing

import pytest

from holdfast import commands
from holdfast.commands import queue, queue_admin
from holdfast.engines.memory import engine as memory
from holdfast.engines.sqlite import engine as sqlite
from holdfast.rules.table import RULES, RuleKind, commands_of


def test_every_command_has_a_rule():
    """A command without a rule could be sent and never answered."""
    known = {*typing.get_args(commands.Command), commands.WakeHolder}

    assert known == set(RULES)


def test_every_command_belongs_to_one_kind():
    """The kinds divide the commands among them."""
    parts = [commands_of(kind) for kind in RuleKind]

    assert all(parts)
    assert sum(map(len, parts)) == len(RULES)
    assert queue.Publish in commands_of(RuleKind.QUEUE)
    assert queue_admin.GetStats in commands_of(RuleKind.QUEUE)


@pytest.mark.parametrize("engine", [memory, sqlite])
def test_an_engine_that_keeps_everything_answers_every_kind(engine):
    """A new kind of rule must not be forgotten in one of them."""
    assert set(engine._BY_KIND) == set(RuleKind)
