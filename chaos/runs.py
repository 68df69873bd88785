"""Run rounds and check them, several at once where the machine allows it: they mostly wait."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from chaos.checks import check_round
from chaos.runner import RoundRunner

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from chaos.checks import Verdict
    from chaos.rounds import Round
    from chaos.runner import RoundResult


def run_round(round_: Round, folder: Path) -> tuple[RoundResult, Verdict]:
    """Run one round with the unmodified client, and check it."""
    result = RoundRunner(round_, folder).run()
    return result, check_round(result)


def run_rounds(rounds: Sequence[Round], folder: Path, at_once: int) -> list[tuple[RoundResult, Verdict]]:
    """Run these rounds, each in its own folder."""
    folders = [folder / f"round-{number}" for number in range(len(rounds))]
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(run_round, rounds, folders))
