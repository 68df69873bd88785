"""What a limit has counted: `limit show`, `limit reset`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from holdfast.cli import codes, looking, output
from holdfast.cli.plain import plain
from holdfast.core.limit import limit
from holdfast.core.step import run
from holdfast.names import name_of

if TYPE_CHECKING:
    from holdfast.blocking import Holdfast, RateLimiter


class Asked(NamedTuple):
    """Which count is meant."""

    rate: str
    key: str
    name: str | None
    method: str

    def of(self, hf: Holdfast) -> RateLimiter:
        limiter = hf.limit(self.rate, name=self.name, method=self.method, on_unavailable="deny")
        name_of(limiter.name, self.key)
        return limiter


def show(url: str | None, asked: Asked, *, as_json: bool) -> int:
    with looking.connect(url, "limits") as hf:
        limiter = asked.of(hf)
        seen = run(limit.counted(limiter, asked.key))
    if as_json:
        output.print_json({"name": limiter.name, "key": asked.key, "rate": asked.rate, **seen._asdict()})
    else:
        lines: list[tuple[str, object]] = [
            ("limit", limiter.name),
            ("key", asked.key),
            ("left", f"{seen.remaining} of {seen.limit}"),
            ("all free in", output.span(seen.reset_after)),
        ]
        if not seen.allowed:
            lines.append(("next in", output.span(seen.retry_after)))
        output.console().print(output.facts(lines))
    return codes.OK if seen.allowed else codes.BUSY


def reset(url: str | None, asked: Asked, *, as_json: bool) -> int:
    with looking.connect(url, "limits") as hf:
        limiter = asked.of(hf)
        run(limit.reset(limiter, asked.key))
    if as_json:
        output.print_json({"name": limiter.name, "key": asked.key, "reset": True})
    else:
        said = f"{plain(limiter.name)!r}: nothing is counted for {plain(asked.key)!r} any more"
        output.console().print(said, markup=False, soft_wrap=True)
    return codes.OK
