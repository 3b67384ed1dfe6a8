import subprocess
import sys
from pathlib import Path

import cloudpickle
import pytest
from ray import cloudpickle as ray_cloudpickle

from millrace.models.common.errors import InputError
from millrace.models.common.user_code import load


def write(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)


def test_a_module_beside_the_pipeline_file_is_loaded(tmp_path: Path) -> None:
    write(tmp_path, "rows.py", "def read():\n    return 7\n")
    assert load("rows:read", tmp_path)() == 7  # type: ignore[operator]


@pytest.mark.parametrize("name", ["models", "flows", "numpy", "json"])
def test_a_module_named_like_an_installed_one_is_the_users(tmp_path: Path, name: str) -> None:
    write(tmp_path, f"{name}.py", "import numpy\nvalue = 'mine'\n")
    before = sys.modules.get(name)
    assert load(f"{name}:value", tmp_path) == "mine"
    assert sys.modules.get(name) is before


@pytest.mark.parametrize("line", ["import helpers", "from . import helpers"])
def test_siblings_are_imported_and_two_folders_do_not_mix(tmp_path: Path, line: str) -> None:
    for value in (1, 2):
        folder = tmp_path / str(value)
        folder.mkdir()
        write(folder, "helpers.py", f"VALUE = {value}\n")
        write(folder, "rows.py", f"{line}\n\ndef read():\n    return helpers.VALUE\n")
        assert load("rows:read", folder)() == value  # type: ignore[operator]
    assert "helpers" not in sys.modules
    assert str(tmp_path / "1") not in sys.path


def test_a_changed_module_is_loaded_afresh(tmp_path: Path) -> None:
    for value in (1, 2):
        write(tmp_path, "rows.py", f"VALUE = {value}\n")
        assert load("rows:VALUE", tmp_path) == value
    assert not (tmp_path / "__pycache__").exists()


@pytest.mark.parametrize("pickler", [cloudpickle, ray_cloudpickle])
def test_user_code_is_pickled_by_value(tmp_path: Path, pickler: object) -> None:
    write(tmp_path, "helpers.py", "class Base:\n    def answer(self):\n        return 42\n")
    write(tmp_path, "net.py", "import helpers\n\nclass Net(helpers.Base):\n    pass\n")
    net = load("net:Net", tmp_path)
    (tmp_path / "net.pkl").write_bytes(pickler.dumps(net))  # type: ignore[attr-defined]
    command = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb'))().answer())"
    result = subprocess.run(
        [sys.executable, "-c", command, str(tmp_path / "net.pkl")],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
    )
    assert result.stdout.strip() == "42"


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("row:read", ["no module 'row'", "rows:read", "did you mean 'rows'?"]),
        ("rows:raed", ["no attribute 'raed'", "did you mean 'read'?"]),
        ("rows.py:read:x", ["not a reference"]),
        ("broken:read", ["cannot be imported", "ZeroDivisionError", "(broken.py, line 2)"]),
    ],
)
def test_errors_name_what_is_there(tmp_path: Path, reference: str, words: list[str]) -> None:
    write(tmp_path, "rows.py", "def read():\n    return 7\n")
    write(tmp_path, "broken.py", "x = 0\n1 / x\n")
    with pytest.raises(InputError) as caught:
        load(reference, tmp_path)
    for word in words:
        assert word in str(caught.value)
