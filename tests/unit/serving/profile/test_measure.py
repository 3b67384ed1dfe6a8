"""Batches are measured again where Triton ends or its trace is not whole."""

import pytest

from millrace.models.common.errors import MillraceError, TransientError, WorkError
from millrace.models.config.serving_spec import ServingSpec
from millrace.serving.profile import measure
from millrace.serving.profile.measure import TRIES, measure_times
from millrace.serving.profile.search import Setup
from millrace.serving.profile.service_times import ServiceTimes
from millrace.serving.triton.version_folder import Artifact


@pytest.mark.parametrize("failures", [0, TRIES - 1, TRIES])
@pytest.mark.parametrize("error", [TransientError("Triton ended"), WorkError("no whole trace")])
def test_a_measurement_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, failures: int, error: MillraceError
) -> None:
    measured, tried = ServiceTimes((1.0,), (0.001,), ()), 0

    def measure_once(*_: object) -> ServiceTimes:
        nonlocal tried
        tried += 1
        if tried <= failures:
            raise error
        return measured

    monkeypatch.setattr(measure, "_measure", measure_once)

    def found() -> ServiceTimes:
        return measure_times(
            Artifact({}, "digest", "graph"), {}, ServingSpec(), Setup(1, 1), {1: 1}
        )

    if failures < TRIES:
        assert found() is measured
        assert tried == failures + 1
    else:
        with pytest.raises(type(error)):
            found()
        assert tried == TRIES
