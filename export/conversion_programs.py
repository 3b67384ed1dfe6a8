"""The programs that convert one variant into another, and the commands that reproduce a variant.

Each program runs in a subprocess with time and memory limits. If a program hangs, crashes or takes
too much memory, its candidate is refused with the reason, and the other candidates are still made.
"""

import shlex
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from millrace.export.candidate import Candidate
from millrace.models.common.errors import MillraceError
from millrace.models.common.subprocess_runner import Limits, run_in_subprocess

COMMANDS = "commands.sh"
CALIBRATION = "calibration.npz"
DRAFT = ".draft"
"""Suffix of a variant that is not complete yet."""


@dataclass(frozen=True)
class ConversionPrograms:
    """Runs the conversion programs of a package in one folder.

    Attributes:
        package: the package with the programs.
        folder: folder of the variants.
        limits: time and memory limits of one program.
        source: name of the exported file or folder from which the first conversion starts.
        needs: names of the Python packages that are needed to reproduce the variants.
    """

    package: ModuleType
    folder: Path
    limits: Limits
    source: str
    needs: str

    @property
    def programs(self) -> Path:
        """The folder with the programs' source code."""
        return Path(str(self.package.__file__)).parent

    def run(self, program: str, words: Sequence[str | Path]) -> None:
        """Run a program with time and memory limits.

        Args:
            program: name of the program's module.
            words: arguments of its command line.

        Raises:
            WorkError: the program failed, or exceeded the limits.
        """
        run_in_subprocess(
            program,
            list(words),
            self.limits,
            what="its conversion",
            retry_killed=False,
            may_fork=True,
        )

    def keep(self, name: str, program: str, words: Sequence[str]) -> None:
        """Store the programs' source code and the command that makes a variant.

        Called before the command runs, so the command of a failed conversion is stored too.

        Args:
            name: the variant's name.
            program: name of the program's module.
            words: arguments of its command line, with paths relative to the folder.
        """
        copied = self.folder / self.programs.name
        if not copied.exists():
            shutil.copytree(self.programs, copied, ignore=shutil.ignore_patterns("__pycache__"))
        outer = self.package.__name__.rpartition(".")[0]
        command = ["python", "-m", program.removeprefix(f"{outer}."), *words]
        with (self.folder / COMMANDS).open("a") as file:
            if not file.tell():
                file.write(
                    f"# run in this folder, the run's export/, with {self.needs};\n"
                    f"# {self.source} is what training exported\n"
                )
            file.write(f"# {name}\n{shlex.join(command)}\n".replace(DRAFT, ""))

    def reproduction(self) -> tuple[Path, ...]:
        """Return the paths of the files and folders that are needed to reproduce the variants.

        These are the programs, the commands, the source and the calibration file. A path that does
        not exist is left out. The tuple is empty if no command is stored.
        """
        if not (self.folder / COMMANDS).exists():
            return ()
        names = (self.programs.name, COMMANDS, self.source, CALIBRATION)
        return tuple(path for name in names if (path := self.folder / name).exists())


def measure_candidate(
    name: str, measure: Callable[[], Candidate[Any, Any]], *, is_served: bool = True
) -> Candidate[Any, Any]:
    """Return the measured candidate; if it cannot be made or measured, a candidate with the reason.

    Args:
        name: the candidate's name.
        measure: makes and measures the candidate.
        is_served: whether a Triton backend here can serve the variant.

    Raises:
        TransientError: a temporary failure that is not the variant's fault: for example, the
            calibration rows cannot be read.
    """
    try:
        return measure()
    except MillraceError as error:
        if error.transient:
            raise
        return Candidate(name, reason=error.what, is_served=is_served)
