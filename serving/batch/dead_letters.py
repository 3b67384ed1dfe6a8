"""The table of dead letters: rows that were not scored, with the reason.

Columns: those of `DEAD` and the partition's. A partition is replaced with that of the predictions,
right after it: the commit of the predictions decides, and a run that dies between the two is
finished by the next.
"""

import pyarrow as pa

from millrace.serving.batch.commit import Partition
from millrace.serving.batch.folder import Folder
from millrace.serving.batch.job import DEAD
from millrace.serving.batch.monitoring.batch_report import FINGERPRINT


def publish(partition: Partition, fingerprint: str, dead: pa.Table) -> None:
    """Make rows the partition of the dead letters; doing it again changes nothing.

    Args:
        partition: of the table of dead letters.
        fingerprint: of the job whose rows they are.
        dead: of `DEAD`.

    Raises:
        TransientError: the table cannot be written.
    """
    if not dead.num_rows and not partition.active():
        return
    if dead.num_rows:
        Folder(partition.folder).write_table("dead.parquet", dead)
    partition.commit(DEAD, {FINGERPRINT: fingerprint})
