import logging
import pickle

import pytest

from millrace.models.common.errors import InputError
from millrace.models.common.printable import (
    guard_logging,
    has_user_part,
    one_line,
    printable,
    redact,
    safe,
)

MARK = "s3cr3t"


@pytest.mark.parametrize(
    "text",
    [
        f"postgresql://user:{MARK}@db.local:5432/mlflow",
        f"postgresql+psycopg2://user:{MARK}@db/mlflow?sslmode=require",
        f"http://{MARK}@127.0.0.1:5000",
        f"cannot reach https://user:{MARK}@mlflow.local/api, try again",
        f"postgresql://user:a@b{MARK}@db/mlflow",
        f"postgresql://user:a/b{MARK}@db/mlflow",
        f"postgresql://user:{MARK}/@db/mlflow",
        f"(user 'http://:{MARK}@h') \"redis://x:{MARK}@y\"",
        f"postgresql://db/mlflow?user=me&password={MARK}",
        f"s3://key:{MARK}@bucket/tables",
    ],
)
def test_no_address_is_told_with_its_user_part(text: str) -> None:
    assert MARK not in redact(text)
    assert has_user_part(text)
    assert "***" in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "http://127.0.0.1:5000/#/models/digits@champion",
        "http://127.0.0.1:5000/x?mail=a@b",
        "models:/digits@champion",
        "sqlite:////home/ann/mlflow.db",
        "ann@example.org",
        "s3://bucket/tables",
        "a = b",
    ],
)
def test_what_has_no_user_part_stays(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            f"http://u:{MARK}@host/web.csv?X-Amz-Signature={MARK}",
            "http://***@host/web.csv?X-Amz-Signature=***",
        ),
        (
            f"no file at s3://b/x.csv?access_key={MARK}&secret_key={MARK}/+==&region=eu, try",
            "no file at s3://b/x.csv?access_key=***&secret_key=***&region=eu, try",
        ),
        (f"(see 'https://h/x?unheard={MARK}')", "(see 'https://h/x?unheard=***')"),
        (f"(see https://h/x?a={MARK};b={MARK}).", "(see https://h/x?a=***)."),
        (f"s3://b/x?region=http://h?a={MARK}", "s3://b/x?region=***"),
        (
            f"web.csv?X-Amz-Date=1&X-Amz-Signature={MARK}",
            "web.csv?X-Amz-Date=1&X-Amz-Signature=***",
        ),
        ("s3://bucket/year=2025/part-?.csv", "s3://bucket/year=2025/part-?.csv"),
        ("s3://bucket/part-?/year=2025.csv", "s3://bucket/part-?/year=2025.csv"),
        ("did you mean http://h/x? a=b", "did you mean http://h/x? a=b"),
        ("http://h/#/runs?a=b", "http://h/#/runs?a=b"),
    ],
)
def test_no_address_is_told_with_the_values_of_its_query(text: str, told: str) -> None:
    assert redact(text) == told
    assert redact(told) == told


def test_a_query_alone_is_no_user_part() -> None:
    assert not has_user_part("sqlite:///x.db?cache=shared")


def test_control_characters_are_written_out_and_letters_stay() -> None:
    assert printable("a\x00b\x1b[31m\x9b\u202e\u2028\x7f") == (
        "a\\x00b\\x1b[31m\\x9b\\u202e\\u2028\\x7f"
    )
    assert printable("größe 漢字 😀\n\tx") == "größe 漢字 😀\n\tx"
    assert printable("\ud800") == "\\ud800"
    assert one_line("x\ny\r") == "x\\ny\\r"


def test_an_error_holds_neither() -> None:
    error = InputError("a\x1b", seen=f"http://u:{MARK}@h", valid="\x00", hint="\u202e")
    for each in (error, pickle.loads(pickle.dumps(error))):
        assert MARK not in f"{each} {each.as_dict()} {each.args}"
        assert str(each).replace("\n", "").isprintable()


def test_every_log_record_of_the_process_is_cleaned(caplog: pytest.LogCaptureFixture) -> None:
    before = logging.getLogRecordFactory()
    try:
        guard_logging()
        guard_logging()
        log = logging.getLogger("another.library")
        log.warning("at %s for %s", f"postgresql://u:{MARK}@h/d", "\x1b[31m")
        try:
            raise ValueError(f"postgresql://u:{MARK}@h/d")
        except ValueError:
            log.exception("failed")
        assert MARK not in caplog.text
        assert "\x1b" not in caplog.text
        assert "postgresql://***@h/d for \\x1b[31m" in caplog.text
        assert "Traceback" in caplog.text
    finally:
        logging.setLogRecordFactory(before)


def test_safe_does_both() -> None:
    assert safe(f"\x1bhttp://u:{MARK}@h") == "\\x1bhttp://***@h"
