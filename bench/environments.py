"""One virtual environment per contender, because pins fight: `.venv-bench/<name>`, from `requirements/<name>.txt`.

What comes from npm stands behind a comment sign, where pip passes it over. An environment is made again when its
requirements or the interpreter change. One that cannot be made is no reason to stop: its contenders do not run, and
the report says why.
"""

from __future__ import annotations

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENTS = Path(__file__).parent / "requirements"
PLACE = ROOT / ".venv-bench"
_NPM = "# npm: "
_AT_ONCE = 2
_LONGEST_S = 600


class Environment(NamedTuple):
    """An interpreter with one contender's libraries, or why there is none."""

    name: str
    python: str
    why_not: str = ""


def pins(name: str) -> list[str]:
    """What the environment is made of, as its file says."""
    return (REQUIREMENTS / f"{name}.txt").read_text(encoding="utf-8").split("\n")[:-1]


def names() -> list[str]:
    return sorted(file.stem for file in REQUIREMENTS.glob("*.txt"))


def prepare(python: str) -> dict[str, Environment]:
    """Every environment, made with this interpreter."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return {each.name: each for each in pool.map(lambda name: _prepared(name, python), names())}


def _prepared(name: str, python: str) -> Environment:
    folder, version = PLACE / name, _said([python, "-VV"])
    own, ready = folder / "bin" / "python", folder / "ready"
    recipe = "\n".join([python, version, *pins(name)])
    if ready.exists() and ready.read_text(encoding="utf-8") == recipe:
        return Environment(name, str(own))
    shutil.rmtree(folder, ignore_errors=True)
    try:
        _said([python, "-m", "venv", str(folder)])
        install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _said([str(own), *install, "-r", str(REQUIREMENTS / f"{name}.txt")])
        packages = [pin.removeprefix(_NPM).replace("==", "@") for pin in pins(name) if pin.startswith(_NPM)]
        if packages:
            quietly = ["--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"]
            _said(["npm", "install", *quietly, "--prefix", str(folder), *packages])
    except (subprocess.SubprocessError, OSError) as error:
        told = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
        return Environment(name, "", f"its environment could not be made: {told[-1] if told else error!r}")
    ready.write_text(recipe, encoding="utf-8")
    return Environment(name, str(own))


def _said(command: list[str]) -> str:
    run = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=_LONGEST_S)
    return run.stdout.strip()
