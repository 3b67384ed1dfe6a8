import io
import json
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import yaml

from millrace.models.common import bounded_files
from millrace.models.common.bounded_files import (
    bounded_arrays,
    bounded_json,
    bounded_text,
    bounded_yaml,
    check_folder,
    check_yaml,
    require_readable,
)
from millrace.models.common.errors import InputError
from millrace.models.config.pipeline_file import load_pipeline


def bomb(levels: int, width: int = 9) -> str:
    """Aliases of aliases: `width ** levels` values."""
    lines = ["a0: &a0 [" + ", ".join(["x"] * width) + "]"]
    for level in range(1, levels):
        lines.append(f"a{level}: &a{level} [" + ", ".join([f"*a{level - 1}"] * width) + "]")
    return "\n".join(lines) + "\n"


BAD_YAML = {
    "aliases seven deep": bomb(7),
    "aliases thirty deep": bomb(30),
    "merge keys": "a: &a {k: 1}\n"
    + "".join(
        f"b{n}: &b{n} {{<<: [{', '.join([f'*{p}'] * 9)}]}}\n"
        for n, p in enumerate(["a", *(f"b{each}" for each in range(8))])
    ),
    "an alias in itself": "a: &a [*a]",
    "lists in lists": "[" * 50_000,
    "closed lists in lists": "[" * 5000 + "]" * 5000,
    "blocks in blocks": "".join(f"{' ' * n}a:\n" for n in range(600)),
    "a number of many digits": "a: " + "1" * 10_000,
    "a number of sixties": "a: 1" + ":59" * 30_000,
    "many values": "- 1\n" * 30_000,
    "a large text": "a: " + "x" * (1 << 20),
}


@pytest.mark.parametrize("kind", BAD_YAML)
def test_yaml_beyond_a_limit_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    began = time.thread_time()
    with pytest.raises((ValueError, yaml.YAMLError)):
        bounded_yaml(BAD_YAML[kind])
    assert time.thread_time() - began < 10
    file = tmp_path / "pipeline.yaml"
    file.write_text(BAD_YAML[kind])
    with pytest.raises(InputError):
        load_pipeline(file)
    with pytest.raises((ValueError, yaml.YAMLError)):
        check_folder(tmp_path)


def test_some_aliases_are_fine() -> None:
    text = "base: &base {a: [1, 2]}\nx: {<<: *base, b: 1}\ny: *base\n"
    assert bounded_yaml(text)["y"] == {"a": [1, 2]}
    check_yaml(yaml.safe_dump({"a": [{"b": [1, {"c": "d"}]}]}))


def test_json_beyond_a_limit_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for text in ("[" * 1_000_000, "{", '{"a": ' * 100_000, "1" * 5000):
        with pytest.raises(ValueError):  # noqa: PT011 - each says something else
            bounded_json(text)
    assert bounded_json('{"a": [1, NaN]}')["a"][0] == 1
    monkeypatch.setattr(bounded_files, "JSON_NODES", 10)
    with pytest.raises(ValueError, match="more than 10 values"):
        bounded_json(json.dumps(list(range(20))))
    (tmp_path / "x").write_text("12345")
    with pytest.raises(ValueError, match="larger than 4 bytes"):
        bounded_text(tmp_path / "x", 4)


def npz(path: Path, name: str, content: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr(name, content)
    return path


def array_of(shape: tuple[int, ...], data: bytes = b"") -> bytes:
    header = io.BytesIO()
    variant = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, variant)
    return header.getvalue() + data


@pytest.mark.parametrize("shape", [(1 << 40,), (1 << 32, 1 << 32), (-1,), (2,)])
def test_an_array_that_is_not_as_large_as_it_says_is_refused(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        bounded_arrays(npz(tmp_path / "golden.npz", "features.npy", array_of(shape)))


def test_what_unpacks_to_too_much_or_is_no_array_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for content in (b"", b"hello", array_of((1,))[:20]):
        with pytest.raises(ValueError):  # noqa: PT011
            bounded_arrays(npz(tmp_path / "a.npz", "a.npy", content))
    (tmp_path / "b.npz").write_bytes(b"no zip")
    with pytest.raises(ValueError, match="not an npz file"):
        bounded_arrays(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", x=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="objects"):
        bounded_arrays(tmp_path / "c.npz")
    monkeypatch.setattr(bounded_files, "NPZ_BYTES", 1000)
    np.savez_compressed(tmp_path / "d.npz", x=np.zeros(1000))
    with pytest.raises(ValueError, match="unpacks to more than 1,000 bytes"):
        bounded_arrays(tmp_path / "d.npz")


@pytest.mark.parametrize("text", ["a: !!int ''", "!!int '-'", "!!float _"])
def test_a_tagged_number_without_digits_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        bounded_yaml(text)


def test_good_arrays_are_read(tmp_path: Path) -> None:
    text = np.array('["a"]')
    np.savez(tmp_path / "golden.npz", features=np.eye(3, dtype=np.float32), text=text)
    found = bounded_arrays(tmp_path / "golden.npz")
    assert found["features"].shape == (3, 3)
    assert found["text"].item() == '["a"]'


def test_evidence_is_read_in_a_process_with_limits(tmp_path: Path) -> None:
    (tmp_path / "certificate.json").write_text("{}")
    (tmp_path / "pipeline.yaml").write_text("name: x\n")
    require_readable(tmp_path, "digits version 1")
    (tmp_path / "pipeline.yaml").write_text(bomb(7))
    with pytest.raises(InputError, match="the evidence files of digits version 1") as told:
        require_readable(tmp_path, "digits version 1")
    assert "pipeline.yaml: the YAML has more than 20,000 values" in str(told.value.seen)
