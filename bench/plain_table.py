"""A table to an ONNX model without Millrace, as a user would write it: Polars, torch, onnxruntime.

`python plain_table.py ROWS.parquet FOLDER` writes `model.onnx` into the folder, and prints its
accuracy on the test split. It needs nothing of Millrace.
"""

import sys
from pathlib import Path

import numpy as np
import onnxruntime
import polars as pl  # type: ignore[import-not-found]
import torch
from torch import nn
from torch.nn import functional

TARGET = "y"
BATCH = 4096
BUCKETS = 10_000


def main(rows: Path, folder: Path) -> float:
    """Train for one epoch, export, and return the accuracy on the test split."""
    torch.manual_seed(0)
    table = pl.read_parquet(rows)
    bucket = table.hash_rows() % BUCKETS
    columns = [name for name in table.columns if name != TARGET]
    features = table.select(columns).cast(pl.Float32).to_numpy()
    target = table[TARGET].to_numpy()
    at = bucket.to_numpy()
    test, train = at < BUCKETS // 10, at >= BUCKETS // 5
    validation = ~test & ~train
    mean, std = features[train].mean(axis=0), features[train].std(axis=0)
    x, y = torch.from_numpy((features[train] - mean) / std), torch.from_numpy(target[train])
    net = nn.Sequential(
        *(nn.Linear(len(columns), 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    )
    steps = -(-len(x) // BATCH)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=steps + 1)
    order = torch.randperm(len(x))
    for start in range(0, len(x), BATCH):
        part = order[start : start + BATCH]
        optimizer.zero_grad()
        functional.cross_entropy(net(x[part]), y[part]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    scaled = torch.from_numpy((features[validation] - mean) / std)
    with torch.no_grad():
        right = (net(scaled).argmax(dim=1).numpy() == target[validation]).mean()
    sys.stderr.write(f"validation accuracy {right:.4f}\n")
    file = folder / "model.onnx"
    example = torch.zeros(1, len(columns))
    rows_axis = torch.export.Dim("rows")
    torch.onnx.export(net.eval(), (example,), file, dynamo=True, dynamic_shapes=({0: rows_axis},))
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    answers = session.run(None, {name: (features[test] - mean) / std})[0]
    return float((np.argmax(answers, axis=1) == target[test]).mean())


if __name__ == "__main__":
    sys.stdout.write(f"{main(Path(sys.argv[1]), Path(sys.argv[2])):.4f}\n")
