"""The tags of a version that programs read and people do not, in one tag of MLflow's.

MLflow's list of versions shows every tag on a line of its own, and cuts its name. A tag beside the
record, with its own name, counts instead of the record's: versions of an earlier Millrace have all
of them so, and what someone writes there does not fit the signature.
"""

import json
from collections.abc import Mapping

from millrace.models.common.bounded_files import bounded_json

RECORD_TAG = "millrace.record"
PREFIX = "millrace."
RECORDED = (
    *("base_revision", "checkpoint_digest", "dataset_digest", "digest", "evidence"),
    *("golden_difference", "kind", "tokenizer_digest"),
)


def with_record(tags: Mapping[str, str]) -> dict[str, str]:
    """Return the tags of a new version as they are stored in MLflow."""
    names = {f"{PREFIX}{name}": name for name in RECORDED}
    record = {names[tag]: value for tag, value in tags.items() if tag in names}
    shown = {tag: value for tag, value in tags.items() if tag not in names}
    return {**shown, RECORD_TAG: json.dumps(record, sort_keys=True)}


def without_record(stored: Mapping[str, str]) -> dict[str, str]:
    """Return a version's tags, each by its name, from what is stored in MLflow.

    A record that cannot be read counts as none, so that the version is not trusted.
    """
    tags = {tag: value for tag, value in stored.items() if tag != RECORD_TAG}
    try:
        record = bounded_json(stored.get(RECORD_TAG, "{}"))
    except ValueError:
        return tags
    if not isinstance(record, dict):
        return tags
    known = {
        f"{PREFIX}{name}": value
        for name, value in record.items()
        if name in RECORDED and isinstance(value, str)
    }
    return {**known, **tags}
