"""Rounds played and judged, several at once where the machine allows it: they mostly wait."""

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


def play(round_: Round, folder: Path) -> tuple[RoundResult, Verdict]:
    """One round of the right client."""
    played = RoundRunner(round_, folder).play()
    return played, check_round(played)


def play_all(rounds: Sequence[Round], folder: Path, at_once: int) -> list[tuple[RoundResult, Verdict]]:
    """These rounds, each in a folder of its own."""
    folders = [folder / f"round-{number}" for number in range(len(rounds))]
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(play, rounds, folders))
