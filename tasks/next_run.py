"""Names the run that would teach the planner most about this machine."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from millrace.models.common.installation import Installation
from millrace.models.config.pipeline_file import load_pipeline
from millrace.models.planner.measurements import Measurement
from millrace.models.planner.next_measurement import NextMeasurement, choose_measurement
from millrace.models.planner.sheet import plan_sheet
from millrace.models.planner.work import Work
from millrace.tasks.plan import work_of
from millrace.tasks.plan_places import Place, cpu_place

PLACES = ("*.yaml", "examples/*.yaml")
"""Where pipeline files are looked for, if none is named."""
MOST_FILES = 20
"""Files that are planned, if none is named: each takes up to a second."""


def find_next_run(
    files: Sequence[Path], installation: Installation, measurements: Sequence[Measurement]
) -> NextMeasurement | None:
    """Return which pipeline to run next; None if none can be planned and fits into memory.

    Args:
        files: the pipelines to choose from; without one, the pipeline files of the working folder
            and of its `examples/`, as far as they can be planned without a call of their code.
        installation: its home has the snapshots and this machine's measurements.
        measurements: the ledger.

    Raises:
        InputError: a named file is not valid, or its model cannot be built.
        TransientError: the source of a named file cannot be reached.
    """
    place = cpu_place(installation, measurements)
    works = (
        {str(file): _plan(file, installation, place, call_functions=True) for file in files}
        if files
        else dict(_plan_found(installation, place))
    )
    fitting = {file: work for file, work in works.items() if work is not None}
    own = [each for each in measurements if each.machine == place.name]
    return choose_measurement(fitting, place.machines, place.fits, own)


def _plan_found(installation: Installation, place: Place) -> Iterator[tuple[str, Work | None]]:
    found = [file for folder in PLACES for file in sorted(Path().glob(folder))]
    for file in found[:MOST_FILES]:
        # Another YAML file, a pipeline whose data is not known yet, or code that raises anything.
        with suppress(Exception):
            yield str(file), _plan(file, installation, place, call_functions=False)


def _plan(
    file: Path, installation: Installation, place: Place, *, call_functions: bool
) -> Work | None:
    """Return what a pipeline asks for; None if a stage does not fit into the machine's memory."""
    work = work_of(load_pipeline(file), installation, call_functions=call_functions)
    return work if plan_sheet(work, place.machines, place.fits).fits else None
