"""Rounds played and judged, several at once where the machine allows it: they mostly wait."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from chaos.judge import judge
from chaos.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from chaos.judge import Verdict
    from chaos.rounds import Round
    from chaos.stage import Played


def play(round_: Round, folder: Path) -> tuple[Played, Verdict]:
    """One round of the right client."""
    played = Stage(round_, folder).play()
    return played, judge(played)


def play_all(rounds: Sequence[Round], folder: Path, at_once: int) -> list[tuple[Played, Verdict]]:
    """These rounds, each in a folder of its own."""
    folders = [folder / f"round-{number}" for number in range(len(rounds))]
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(play, rounds, folders))
