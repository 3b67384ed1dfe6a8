from pathlib import Path

from millrace.models.ray.jobs import PACKAGES, PIPELINE, ROOT, copy_code


def test_the_code_and_the_file_travel_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("name: mine")
    (tmp_path / "secret.csv").write_text("1")
    folder = tmp_path / "package"
    folder.mkdir()
    copy_code(folder, file)
    assert {each.name for each in folder.iterdir()} == {"millrace", PIPELINE}
    assert (folder / PIPELINE).read_text() == "name: mine"
    there = {each.relative_to(folder / "millrace") for each in folder.rglob("*.py")}
    here = {p.relative_to(ROOT) for name in PACKAGES for p in (ROOT / name).rglob("*.py")}
    assert there == here
    assert not list(folder.rglob("__pycache__"))
