"""One virtual environment per candidate, because their pins conflict: `.venv-bench/NAME`, from `requirements/NAME.txt`.

npm packages are in comments of that file, which pip ignores. An environment is rebuilt when its requirements or the
interpreter change. If one cannot be built, the run continues: its candidates do not run, and the report says why.
"""

from __future__ import annotations

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENTS = Path(__file__).parent / "requirements"
FOLDER = ROOT / ".venv-bench"
_NPM = "# npm: "
_AT_ONCE = 2
_LONGEST_S = 600


class Environment(NamedTuple):
    """An interpreter with the libraries of one candidate, or the reason why there is none."""

    name: str
    python: str
    why_not: str = ""


def pins(name: str) -> list[str]:
    """Return the lines of the requirements file."""
    return (REQUIREMENTS / f"{name}.txt").read_text(encoding="utf-8").split("\n")[:-1]


def names() -> list[str]:
    """Return the names of all environments."""
    return sorted(file.stem for file in REQUIREMENTS.glob("*.txt"))


def prepare(python: str) -> dict[str, Environment]:
    """Build every environment with this interpreter, as far as needed."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return {each.name: each for each in pool.map(lambda name: _prepared(name, python), names())}


def _prepared(name: str, python: str) -> Environment:
    folder, version = FOLDER / name, _output([python, "-VV"])
    own, ready = folder / "bin" / "python", folder / "ready"
    recipe = "\n".join([python, version, *pins(name)])
    if ready.exists() and ready.read_text(encoding="utf-8") == recipe:
        return Environment(name, str(own))
    shutil.rmtree(folder, ignore_errors=True)
    try:
        _output([python, "-m", "venv", str(folder)])
        install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _output([str(own), *install, "-r", str(REQUIREMENTS / f"{name}.txt")])
        packages = [pin.removeprefix(_NPM).replace("==", "@") for pin in pins(name) if pin.startswith(_NPM)]
        if packages:
            quietly = ["--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"]
            _output(["npm", "install", *quietly, "--prefix", str(folder), *packages])
    except (subprocess.SubprocessError, OSError) as error:
        lines = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
        return Environment(name, "", f"its environment could not be built: {lines[-1] if lines else error!r}")
    ready.write_text(recipe, encoding="utf-8")
    return Environment(name, str(own))


def _output(command: list[str]) -> str:
    run = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=_LONGEST_S)
    return run.stdout.strip()
