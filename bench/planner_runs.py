"""Runs the configurations of `planner_runs.yaml`, and writes what the ledger says of them.

`python -m bench.planner_runs ROWS.csv [PREFIX]` runs and scores each of them once, those of both
lists in turn, with nothing beside it, and writes a row for each quantity that was measured. With
a prefix only the configurations whose names begin with it; with the prefix `large` the large ones.
"""

import csv
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from bench.home import own_home
from millrace.models.common.installation import Installation
from millrace.models.common.machine_cache import machine_cache
from millrace.models.planner.measurements import Measurement, read_measurements
from millrace.models.planner.this_machine import this_device

HERE = Path(__file__).parent
MILLRACE = Path(sys.executable).with_name("millrace")
EXAMPLES = HERE.parent / "examples"
EPOCHS, TEXT_EPOCHS, LM_STEPS, PROMPTS = 4, 2, 120, 64
LARGE = "large"
COLUMNS = ("quantity", "machine", "model", "kind", "measured", "terms")


def configurations() -> list[dict[str, Any]]:
    """Return the configurations of both lists in turn, so that neither is run at another time."""
    pairs = zip_longest(list_of("fit"), list_of("held_out"))
    return [each for each in chain.from_iterable(pairs) if each is not None]


def list_of(name: str) -> list[dict[str, Any]]:
    """Return one of the lists of `planner_runs.yaml`."""
    lists: dict[str, list[dict[str, Any]]] = yaml.safe_load(
        (HERE / "planner_runs.yaml").read_text()
    )
    return lists[name]


def write_pipeline(folder: Path, configuration: Mapping[str, Any]) -> Path:
    """Write the pipeline file of a configuration, and its rows where it has a table."""
    family, keys = configuration["family"], dict(configuration)
    pipeline = {
        "mlp": _of_table,
        "gradient_boosting": _of_table,
        "cnn": _of_digits,
        "text_classifier": _of_texts,
        "causal_lm": _of_corpus,
    }[family](folder, keys)
    pipeline["name"], pipeline["promotion"] = keys.pop("name"), "auto"
    pipeline.setdefault("model", {})["family"] = keys.pop("family")
    for name, value in keys.items():
        *parts, last = name.split(".")
        place = pipeline
        for part in parts:
            place = place.setdefault(part, {})
        place[last] = value
    file = folder / f"{configuration['name']}.yaml"
    file.write_text(yaml.safe_dump(pipeline))
    return file


def _of_table(folder: Path, keys: dict[str, Any]) -> dict[str, Any]:
    rows, width = keys.pop("rows"), keys.pop("width")
    chance = np.random.default_rng(0)
    numbers = chance.normal(size=(rows, width)).astype(np.float32)
    target = (numbers @ chance.normal(size=width) + chance.normal(size=rows) > 0).astype(np.int64)
    columns = {f"x{n}": pa.array(numbers[:, n]) for n in range(width)}
    source = folder / f"{keys['name']}.parquet"
    pq.write_table(pa.table({**columns, "id": np.arange(rows), "y": target}), source)
    training = {} if keys["family"] == "gradient_boosting" else {"epochs": EPOCHS}
    dataset = {"source": str(source), "target": "y", "key": "id", "task": "classification"}
    return {"dataset": dataset, "training": training}


def _of_digits(folder: Path, keys: dict[str, Any]) -> dict[str, Any]:
    return {
        "dataset": {"source": "sklearn:digits", "target": "target"},
        "model": {"params": {"image_shape": [1, 8, 8]}},
        "training": {"epochs": 3 * EPOCHS},
    }


def _of_texts(folder: Path, keys: dict[str, Any]) -> dict[str, Any]:
    _copy(folder, "stdlib_functions.py")
    return {
        "dataset": {
            "source": "stdlib_functions:functions",
            "target": "package",
            "key": "name",
            "features": "code",
            "columns": {"code": {"type": "text"}},
        },
        "model": {"params": {"num_attention_heads": 4}, "tokenizer": {"vocab_size": 2048}},
        "training": {"epochs": TEXT_EPOCHS},
    }


def _of_corpus(folder: Path, keys: dict[str, Any]) -> dict[str, Any]:
    _copy(folder, "stdlib_source.py")
    size = keys["model.params.hidden_size"]
    params = {
        "architecture": "llama",
        "intermediate_size": 3 * size,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    }
    prompts = folder / "prompts.parquet"
    texts = [f"def function_{n}(values):\n" for n in range(PROMPTS)]
    names = [str(n) for n in range(PROMPTS)]
    pq.write_table(pa.table({"path": names, "prompt": texts}), prompts)
    return {
        "dataset": {
            "source": "stdlib_source:modules",
            "target": "text",
            "features": [],
            "key": "path",
        },
        "model": {"params": params, "tokenizer": {"vocab_size": 512}},
        "training": {"max_steps": LM_STEPS, "log_steps": 20},
        "batch": {"input": str(prompts), "sampling": {"max_tokens": 32}},
    }


def _copy(folder: Path, name: str) -> None:
    (folder / name).write_text((EXAMPLES / name).read_text())


def run_all(
    installation: Installation,
    folder: Path,
    chosen: Iterable[Mapping[str, Any]],
    *,
    scores: bool = True,
) -> Iterator[list[Measurement]]:
    """Run each configuration, score with it if `scores`, and yield its measurements."""
    ledger = installation.table("planner", "measurements")
    known = len(read_measurements(ledger))
    for configuration in chosen:
        file = write_pipeline(folder, configuration)
        commands: list[tuple[object, ...]] = [("run", file)]
        commands += [("score", file, "--version", "1")] if scores else []
        for words in commands:
            command = [str(MILLRACE), *map(str, words)]
            done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
            if done.returncode:
                sys.stderr.write(f"{configuration['name']} {words[0]}: {done.stderr[-800:]}\n")
        measured = read_measurements(ledger)
        yield measured[known:]
        known = len(measured)


def main(target: Path, prefix: str = "") -> None:
    """Run the configurations, and write their measurements after each of them."""
    is_large = prefix == LARGE
    every = list_of(LARGE) if is_large else configurations()
    chosen = [each for each in every if is_large or each["name"].startswith(prefix)]
    with (
        own_home() as installation,
        tempfile.TemporaryDirectory() as folder,
        target.open("w", newline="") as file,
    ):
        installation.prepared()
        this_device(machine_cache())
        rows = csv.writer(file)
        rows.writerow(COLUMNS)
        for measured in run_all(installation, Path(folder), chosen):
            for each in measured:
                terms = json.dumps({name: float(f"{v:.5g}") for name, v in each.terms.items()})
                named = (each.quantity, each.machine, each.model, each.kind)
                rows.writerow((*named, f"{each.measured:.6g}", terms))
                sys.stdout.write(f"{each.model} {each.quantity} {each.measured:.5g}\n")
            file.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:3])
