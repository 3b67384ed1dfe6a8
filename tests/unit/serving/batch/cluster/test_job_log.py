import logging

from millrace.serving.batch.cluster.job_log import (
    Line,
    Log,
    MarkedFormatter,
    find_outcome,
    format_outcome,
)

LOG = (
    "2026-01-05 INFO job_manager.py:581 -- Runtime env is setting up.\n"
    "millrace INFO score: 1/2 rows\n"
    "millrace WARNING drift over 0.25\n"
)


def record(level: int, text: str) -> logging.LogRecord:
    return logging.LogRecord("millrace", level, __file__, 1, text, None, None)


def test_every_line_of_a_record_is_marked_with_its_level() -> None:
    text = MarkedFormatter("%(message)s").format(record(logging.ERROR, "first\n  second"))
    assert text == "millrace ERROR first\nmillrace ERROR   second"
    assert Log().read_new_lines(text + "\n") == [
        Line(logging.ERROR, "first"),
        Line(logging.ERROR, "  second"),
    ]


def test_lines_that_are_not_ours_are_left_out() -> None:
    assert Log().read_new_lines(LOG) == [
        Line(logging.INFO, "score: 1/2 rows"),
        Line(logging.WARNING, "drift over 0.25"),
    ]


def test_a_line_is_told_once_and_when_it_is_whole() -> None:
    log = Log()
    assert len(log.read_new_lines(LOG)) == 2
    assert log.read_new_lines(LOG + "millrace INFO half a l") == []
    assert log.read_new_lines(LOG + "millrace INFO half a line\n") == [
        Line(logging.INFO, "half a line")
    ]


def test_a_log_that_could_not_be_had_for_a_while_is_not_told_again() -> None:
    log = Log()
    log.read_new_lines(LOG)
    assert log.read_new_lines("") == []
    assert log.read_new_lines(LOG) == []


def test_the_outcome_is_the_line_with_the_jobs_own_id() -> None:
    line = format_outcome("millrace-m-2026-01-05-1f", {"report": {"rows": 2}, "events": []})
    noise = 'Running entrypoint for job millrace-m-2026-01-05-1f: {"report": 1}\n'
    other = format_outcome("millrace-m-2026-01-05-2e", {"error": {}})
    text = f"{noise}{other}\n{LOG}{line}\n*** SIGTERM\n"
    assert find_outcome(text, "millrace-m-2026-01-05-1f") == {"report": {"rows": 2}, "events": []}


def test_a_log_without_an_outcome_has_none() -> None:
    assert find_outcome(LOG, "millrace-m-2026-01-05-1f") is None
