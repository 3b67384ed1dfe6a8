"""Names the run that would teach the planner most about this machine."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from millrace.models.common.errors import MillraceError
from millrace.models.common.installation import Installation
from millrace.models.config.pipeline_file import load_pipeline
from millrace.models.planner.measurements import Measurement
from millrace.models.planner.next_measurement import NextMeasurement, choose_measurement
from millrace.models.planner.work import Work
from millrace.tasks.plan import work_of
from millrace.tasks.plan_places import cpu_place

PLACES = ("*.yaml", "examples/*.yaml")
"""Where pipeline files are looked for, if none is named."""
MOST_FILES = 20
"""Files that are planned, if none is named: each takes up to a second."""


def find_next_run(
    files: Sequence[Path], installation: Installation, measurements: Sequence[Measurement]
) -> NextMeasurement | None:
    """Return which pipeline to run next; None if no pipeline file can be planned.

    Args:
        files: the pipelines to choose from; without one, the pipeline files of the working folder
            and of its `examples/`, as far as they can be planned without a call of their code.
        installation: its home has the snapshots and this machine's measurements.
        measurements: the ledger.

    Raises:
        InputError: a named file is not valid, or its model cannot be built.
        TransientError: the source of a named file cannot be reached.
    """
    works = (
        {str(file): _plan(file, installation, call_functions=True) for file in files}
        if files
        else dict(_plan_found(installation))
    )
    place = cpu_place(installation, measurements)
    own = [each for each in measurements if each.machine == place.name]
    return choose_measurement(works, place.machines, place.fits, own)


def _plan_found(installation: Installation) -> Iterator[tuple[str, Work]]:
    found = [file for place in PLACES for file in sorted(Path().glob(place))]
    for file in found[:MOST_FILES]:
        # Another YAML file, or a pipeline whose data is not known yet.
        with suppress(MillraceError):
            yield str(file), _plan(file, installation, call_functions=False)


def _plan(file: Path, installation: Installation, *, call_functions: bool) -> Work:
    return work_of(load_pipeline(file), installation, call_functions=call_functions)
