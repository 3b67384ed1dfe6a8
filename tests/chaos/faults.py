"""`make soak`: a disk that is full, a database that is corrupt, an MLflow that is silent.

    python -m tests.chaos.faults [CASES] [SEED] [FIRST]

Each case spoils one thing, runs one command, puts the thing right and runs the command again. The
first run must end in time with a reason, without a stack trace; nothing that was there before may
be lost; the second run must succeed. A short form is a test. Needs root: a full disk is a small
tmpfs.
"""

import json
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.fault_kinds import CASES
from tests.chaos.fault_site import Site, a_site, restore
from tests.integration.conftest import Done

SECONDS_TO_TELL = 30.0
"""What a command may take longer than it takes undisturbed."""


@dataclass(frozen=True)
class Result:
    """What a case came to.

    Attributes:
        fault: of `CASES`.
        command: of `COMMANDS`.
        seconds: of the command with the fault.
        code: its exit code.
        what: what its error said.
        faults: what is wrong with that; nothing if all is well.
    """

    fault: str
    command: str
    seconds: float
    code: int
    what: str
    faults: tuple[str, ...]

    def __str__(self) -> str:
        """Return a line of the report."""
        return (
            f"{self.fault} / {self.command}: exit {self.code} after {self.seconds:.1f} s, "
            f"{self.what!r}: {'; '.join(self.faults) or 'well'}"
        )


def try_case(site: Site, fault: str, command: str, seed: int) -> Result:
    """Spoil, run, put right, look, run again."""
    restore(site)
    site.forget_served()
    before = site.content()
    limit = site.usual[command] + SECONDS_TO_TELL
    spoil, _ = CASES[fault]
    with spoil(site, random.Random(seed)) as env:
        done, seconds = site.run(command, env, limit + 60)
    wrong = [*_badly_told(done), *([f"{seconds:.0f} s"] if seconds > limit else [])]
    try:
        if not site.keeps(before):
            wrong.append("something is lost")
    except Exception as error:  # whatever cannot be read any more is what this looks for
        wrong.append(f"something is lost: {error!r}"[:300])
    again, _ = site.run(command, {}, limit + 60)
    if again.code != 0:
        wrong.append(
            f"the command fails once the fault is gone: {again.out[-400:]} {again.err[-400:]}"
        )
    what = done.json.get("what", "") if done.code and _is_json(done.out) else ""
    return Result(fault, command, seconds, done.code, str(what), tuple(wrong))


def _badly_told(done: Done) -> Iterator[str]:
    if done.code == 0:
        return  # it did not matter to this command
    if done.code not in (1, 2):
        yield f"exit code {done.code}: {done.err[-300:]}"
    if "Traceback" in done.out + done.err:
        yield f"a stack trace: {done.err[-600:]}"
    if not _is_json(done.out) or not done.json.get("what"):
        yield f"no JSON: {done.out[-300:]} {done.err[-300:]}"
    elif "unexpected error" in done.json["what"]:
        yield f"not foreseen: {done.json['seen']} ({done.json['next']})"


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except json.JSONDecodeError:
        return False


@contextmanager
def _prefect(root: Path) -> Iterator[str]:
    from tests.integration.conftest import prefect_server

    with prefect_server(root / "prefect") as api:
        yield api


def main(cases: int, seed: int, first: int) -> int:
    """Try so many cases, every kind in turn; print each and return how many went wrong.

    Args:
        cases: how many.
        seed: of what is drawn by chance.
        first: number of the first case, from 1, to go on where another run ended.
    """
    pairs = [(fault, command) for fault, (_, commands) in CASES.items() for command in commands]
    wrong = 0
    with (
        tempfile.TemporaryDirectory(prefix="faults-") as folder,
        _prefect(Path(folder)) as api,
        a_site(Path(folder), api) as site,
    ):
        _say(f"undisturbed: { ({name: round(s, 1) for name, s in site.usual.items()}) }")
        for number in range(first - 1, first - 1 + cases):
            result = try_case(site, *pairs[number % len(pairs)], seed + number)
            wrong += bool(result.faults)
            _say(f"{number + 1:3} {result}")
    _say(f"{cases} faults: {cases - wrong} passed, {wrong} failed")
    return wrong


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    sys.exit(bool(main(*given, *(100, 0, 1)[len(given) :])))
