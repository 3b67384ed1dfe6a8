import json
from pathlib import Path

from millrace.models.inference.language_engine import ENGINE, own_properties


def test_a_form_says_numbers_and_no_paths(tmp_path: Path) -> None:
    assert own_properties(tmp_path) == {}
    told = {"INFERENCE_PRECISION_HINT": "f32", "CACHE_DIR": "/etc", "KV_CACHE_PRECISION": "u8"}
    (tmp_path / ENGINE).write_text(json.dumps(told))
    wanted = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "u8"}
    assert own_properties(tmp_path) == wanted
