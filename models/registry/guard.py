"""Whether a version may go live: a decision over plain values."""

from dataclasses import dataclass

from millrace.models.config.serving_spec import RequireSpec


@dataclass(frozen=True)
class Credentials:
    """What a version brings.

    Attributes:
        passed: whether its certificate says that it held its gates.
        metric: its metric on its test split; None if it could not be measured.
        metric_name: what that is.
        smaller_is_better: of two metrics.
        author: the user who ran the training; empty if nobody is known.
        approved_by: who approved it; empty if nobody did.
        unsigned: why it counts as not signed; empty if a key that this home trusts signed it.
    """

    passed: bool
    metric: float | None
    metric_name: str
    author: str
    approved_by: str
    smaller_is_better: bool = False
    unsigned: str = ""


@dataclass(frozen=True)
class Incumbent:
    """The version that is live.

    Attributes:
        version: its number.
        metric: its metric on the test split of the new one; None if it could not be measured.
    """

    version: int
    metric: float | None


def refusal(
    require: RequireSpec, credentials: Credentials, incumbent: Incumbent | None
) -> str | None:
    """Return why a version may not go live, or None.

    Args:
        require: what its pipeline requires; of a version that is not signed, what the owner of
            the home does, since nobody knows who wrote its pipeline file.
        credentials: what it brings.
        incumbent: the version that is live, or None where nothing is, or nothing is compared.
    """
    if require.signed and credentials.unsigned:
        return f"it is not trusted: {credentials.unsigned}"
    if require.certificate and not credentials.passed:
        return "its certificate says that it did not hold its gates"
    if require.approval and not credentials.approved_by:
        return "nobody approved it: set the tag millrace.approved_by, then run: millrace release"
    if require.approval and not credentials.author:
        return "it is not known who ran its training, so nobody can be told from them"
    if require.approval and credentials.approved_by == credentials.author:
        return f"{credentials.author} ran its training, and cannot approve it too"
    if incumbent is None or require.max_metric_drop is None:
        return None
    return _drop(require.max_metric_drop, credentials, incumbent)


def _drop(allowed: float, credentials: Credentials, incumbent: Incumbent) -> str | None:
    name, mine, other = credentials.metric_name, credentials.metric, incumbent.metric
    if mine is None or other is None:
        which = "it" if mine is None else f"version {incumbent.version}, which is live,"
        return (
            f"{which} cannot be measured on the new version's test split, so they cannot be "
            "compared; train with promotion.require.max_metric_drop: null to go without"
        )
    loss = mine - other if credentials.smaller_is_better else other - mine
    drop = loss / abs(other) if other else loss
    # A NaN fails every comparison, so this is written such that NaN is refused.
    if not drop <= allowed:
        live = f"{other:.4f} of version {incumbent.version}"
        where = "above" if credentials.smaller_is_better else "below"
        return f"its {name} of {mine:.4f} is {drop:.1%} {where} {live}; allowed is {allowed:.1%}"
    return None
