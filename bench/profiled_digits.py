"""A trained version of the digits that is profiled and measured; its goal."""

from functools import cached_property

from millrace.models.common.arrays import Array
from millrace.models.common.installation import Installation
from millrace.models.config.slo_spec import SloSpec
from millrace.serving.profile.batch_workload import BatchTarget, BatchWorkload
from millrace.serving.profile.profiled_model import ProfiledModel
from millrace.serving.profile.profiler import Decided, Found, Profiler, measure_capacity
from millrace.serving.profile.workload import Configuration, Effort
from millrace.serving.triton.version_folder import Artifact

GOAL = SloSpec(rate=200, p99_ms=20)
CORES = 2


class Digits:
    """The version of the digits, and its profile."""

    def __init__(self, installation: Installation) -> None:
        from millrace.models.registry.mlflow_registry import registry_of
        from millrace.tasks.kinds.steps import steps_of

        registry = registry_of(installation)
        package = registry.fetch(registry.version("digits", 1))
        steps = steps_of(package.version.kind)
        self.rows: dict[str, Array] = dict(steps.load_rows(package))
        self.artifact: Artifact = steps.evidence(package, installation).artifact()

    @cached_property
    def found(self) -> Found:
        """The profile, made once."""
        return Profiler(self._workload(), GOAL, lambda _: None).run()

    def search(self) -> Decided:
        """Find a configuration as a profile does, without the proof."""
        workload = self._workload()
        ranked = workload.rank()
        with workload.running() as target:
            return Profiler(workload, GOAL, lambda _: None).decide(target, ranked)

    def _workload(self) -> BatchWorkload:
        return BatchWorkload(self.artifact, self.rows, GOAL, CORES, NothingKept(), lambda _: None)

    def capacity(self, model: ProfiledModel, configuration: Configuration) -> float:
        """Return the highest rate within the bound of a configuration."""
        model.serve(configuration)
        start = self.found.chosen.measured or GOAL.rate
        return measure_capacity(BatchTarget(model, GOAL), GOAL, start, Effort())


class NothingKept:
    """Measurements that are not kept; a `Kept`."""

    def read(self, name: str, parse: object) -> None:
        """Return None."""

    def write(self, name: str, measured: object) -> None:
        """Keep nothing."""
