import logging

import pytest

from millrace.models.common.quiet import quiet


def test_a_quiet_logger_and_those_below_it_log_errors_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with quiet("chatty"):
        logging.getLogger("chatty.deep").warning("hear me")
        logging.getLogger("chatty").error("an error")
        logging.getLogger("other").warning("another")
    assert caplog.messages == ["an error", "another"]


def test_a_logger_is_as_loud_afterwards_as_before() -> None:
    logger = logging.getLogger("chatty")
    logger.setLevel(logging.INFO)
    with pytest.raises(RuntimeError), quiet("chatty"):
        raise RuntimeError
    assert logger.level == logging.INFO
