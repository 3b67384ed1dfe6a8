"""Training on the rows of a snapshot: which rows each worker reads."""

from dataclasses import dataclass

from millrace.models.config.dataset_spec import Split, SplitSpec
from millrace.models.data import snapshots
from millrace.models.inference.features import Encoding
from millrace.models.training.snapshot_shard import SnapshotShard
from millrace.models.training.train_job import TrainJob

TRAIN: Split = "train"
VALIDATION: Split = "validation"


@dataclass(frozen=True)
class Table:
    """The rows to train and validate on.

    Attributes:
        snapshot: snapshot with the rows, at an address that every worker can read.
        shares: shares of the splits.
    """

    snapshot: snapshots.Snapshot
    shares: SplitSpec

    def shard(
        self, split: Split, rank: int = 0, world_size: int = 1, *, even: bool = True
    ) -> SnapshotShard:
        """Return one worker's part of a split; with the default arguments, the whole split."""
        return SnapshotShard(self.snapshot, self.shares, split, rank, world_size, even)


class TableJob(TrainJob):
    """A training job on the rows of a table.

    Attributes:
        table: the rows to train and validate on.
        encoding: encoding of rows to tensors.
        train_rows: number of rows in the train split, over all workers.
    """

    table: Table
    encoding: Encoding
    train_rows: int
