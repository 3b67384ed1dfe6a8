"""From the columns of a table to the one tensor that a model reads.

It is `features`, float32 `[rows, raw_width]`: numbers as they are, a vector column flattened in
place, and a category as the position of its value in `Feature.categories`. Scaling, one-hot coding
and the replacement of missing values belong to the graph (`millrace.models.families.network`), so a
client sends raw values and the exported artifact is complete. Of a text it is `input_ids`, int64
`[rows, tokens]`, and the client sends `text`: Triton's step before the graph makes tokens of it.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.models.common.arrays import Array
from millrace.models.common.bounded_files import bounded_json
from millrace.models.common.errors import InputError
from millrace.models.config.dataset_spec import ColumnType
from millrace.models.data.coerce import Cast, cast, mask, plain
from millrace.models.data.schema import Column, TableSchema, ValueType
from millrace.models.inference.model_input import FEATURES, INPUT_IDS, ModelInput
from millrace.models.inference.tokenizer import MISSING, UNREADABLE, TextTokenizer

TEXT: Literal["text"] = "text"
"""What a client sends of a text, and the kind of its feature."""

LARGEST = float(np.finfo(np.float32).max)
NOT_TRUTH = "is not true or false"

_HELD: dict[str, ColumnType] = {"number": "float", "vector": "vector"}
_TYPES: dict[type, ValueType] = {str: "string", int: "int", bool: "bool"}


@dataclass(frozen=True)
class Feature:
    """One column as the model sees it.

    Attributes:
        name: the column.
        kind: `number`, `category`, `vector` or `text`.
        width: how many places it takes in the tensor.
        categories: the values of a category, in the order of their codes.
        mean: mean over the train split, nulls left out; of all elements for a vector.
        std: standard deviation likewise; 1 where the column is constant.
        nullable: whether missing values are accepted (and sent as NaN).
        values: of a number, what it may be: any, a whole one, or 1 and 0 for true and false.
        min: smallest value allowed, of each element for a vector; None for any, as in versions
            that an earlier Millrace made.
        max: largest value allowed.
    """

    name: str
    kind: Literal["number", "category", "vector", "text"]
    width: int = 1
    categories: tuple[str | int | bool, ...] = ()
    mean: float = 0.0
    std: float = 1.0
    nullable: bool = False
    values: Literal["float", "int", "bool"] = "float"
    min: float | None = None
    max: float | None = None

    @property
    def missing(self) -> str:
        """What to say of a row where it is NaN and may not be."""
        return "is unknown or missing" if self.kind == "category" else "is missing"

    @property
    def unreadable(self) -> str:
        """What to say of a row where it is infinite."""
        if self.kind == "text":
            return "is not text"
        if self.kind == "category":
            return self.missing
        if self.values == "bool":
            return NOT_TRUTH
        one = "a finite number"
        return f"is not {one if self.kind == 'number' else f'{self.width} finite numbers'}"

    @property
    def rule(self) -> "Rule":
        """What its places in the tensor may hold."""
        if self.kind == "category" or self.values == "bool":
            last = len(self.categories) - 1 if self.kind == "category" else 1
            outside = self.missing if self.kind == "category" else NOT_TRUTH
            limits = (0.0, float(last), True, outside, outside, outside)
        else:
            limits = (
                -LARGEST if self.min is None else float(np.float32(self.min)),
                LARGEST if self.max is None else float(np.float32(self.max)),
                self.values == "int",
                f"is below the minimum {self.min:g}" if self.min is not None else self.unreadable,
                f"is above the maximum {self.max:g}" if self.max is not None else self.unreadable,
                "is not a whole number",
            )
        return Rule(self.name, self.width, self.nullable, self.missing, self.unreadable, *limits)

    @property
    def faults(self) -> tuple[str, ...]:
        """All that may be said of a row in which it cannot be answered."""
        rule = self.rule
        return (rule.missing, rule.unreadable, rule.below, rule.above, rule.fraction)


@dataclass(frozen=True)
class Rule:
    """What the places of a feature may hold, and what is said of a row where they do not.

    It is kept beside a served graph as well, where a request is held to the same
    (`serving/triton/backends/onnxruntime/input_rules.py`).

    Attributes:
        name: the column.
        width: places.
        nullable: whether NaN is accepted.
        missing: what to say of NaN; so unreadable of an infinity, below, above and fraction.
        low: smallest value, in float32.
        high: largest value, likewise.
        whole: whether it must be a whole number.
    """

    name: str
    width: int
    nullable: bool
    missing: str
    unreadable: str
    low: float
    high: float
    whole: bool
    below: str
    above: str
    fraction: str

    def faults(self, part: Array) -> list[tuple[Array, str]]:
        """Return which rows `[rows, width]` fail and why, the first that holds being the reason."""
        found = [(np.isinf(part), self.unreadable)]
        if not self.nullable:
            found.append((np.isnan(part), self.missing))
        if self.whole:
            found.append((part != np.floor(part), self.fraction))
        found += [(part < self.low, self.below), (part > self.high, self.above)]
        if self.nullable:
            found = [(failed & ~np.isnan(part), reason) for failed, reason in found]
        return [(failed.any(axis=1), reason) for failed, reason in found]


@dataclass(frozen=True)
class Encoding:
    """How rows become tensors; kept with every model version as `encoding.json`.

    Attributes:
        features: in the order of their places in the tensor.
        target: the column that is predicted.
        labels: the classes in the order of the model's outputs; empty for regression.
        target_mean: mean of a regression's target over the train split.
        target_std: its standard deviation. The network learns in these units, so that its step
            size fits prices as well as shares; the exported graph answers in the target's own.
        tokenizer: of the one feature, where that is a text; else None.
    """

    features: tuple[Feature, ...]
    target: str
    labels: tuple[str | int | bool, ...] = ()
    target_mean: float = 0.0
    target_std: float = 1.0
    tokenizer: TextTokenizer | None = None

    @property
    def input(self) -> ModelInput:
        """The tensor that the graph reads."""
        if self.tokenizer is None:
            return ModelInput(FEATURES, self.raw_width)
        return ModelInput(INPUT_IDS, self.raw_width, self.tokenizer.padding)

    @property
    def raw_width(self) -> int:
        """Places in the served tensor."""
        return sum(feature.width for feature in self.features)

    @property
    def in_features(self) -> int:
        """Inputs of the network behind the preprocessing: categories are one-hot there."""
        return sum(len(f.categories) or f.width for f in self.features)

    def encode(self, rows: pa.RecordBatch | pa.Table) -> Array:
        """Return float32 `[rows, raw_width]`; of a text int64, filled up to that width.

        A null or an unknown category becomes NaN. A number or a vector that cannot be read as one,
        or is of another width, becomes infinite, which no column accepts. Where there is no text to
        read a row begins with a negative token.
        """
        if self.tokenizer is not None:
            return self._tokens(self.tokenizer, rows[self.features[0].name])
        parts = [_encode_column(feature, rows[feature.name]) for feature in self.features]
        return np.ascontiguousarray(np.concatenate(parts, axis=1), dtype=np.float32)

    def request(self, rows: pa.RecordBatch | pa.Table) -> dict[str, Array]:
        """Return what a client sends of rows that have no errors: `features`, or `text`."""
        if self.tokenizer is None:
            return {FEATURES: self.encode(rows)}
        texts = cast(_one_chunk(rows[self.features[0].name]), Column("", TEXT)).values
        return text_request(texts.to_pylist())

    def _tokens(self, tokenizer: TextTokenizer, column: pa.Array | pa.ChunkedArray) -> Array:
        read = cast(plain(_one_chunk(column)), Column("", TEXT))
        tokens = tokenizer.ids(read.values.to_pylist())
        tokens[read.unparsable, 0] = UNREADABLE
        return tokens

    def encode_target(self, rows: pa.RecordBatch | pa.Table) -> Array:
        """Return the target: int64 `[rows]` positions in `labels`, or float32 `[rows]` values."""
        column = _one_chunk(rows[self.target])
        if not self.labels:
            return np.array(column.cast(pa.float32(), safe=False).to_numpy(zero_copy_only=False))
        return _positions(column, self.labels).astype(np.int64)

    def errors(self, encoded: Array) -> list[str | None]:
        """Return for each encoded row why it cannot be answered, or None.

        Args:
            encoded: what `encode` returned.
        """
        found: list[str | None] = [None] * len(encoded)
        position = 0
        for feature in self.features:
            part = encoded[:, position : position + feature.width]
            position += feature.width
            if feature.kind == TEXT:
                unreadable, missing = part[:, 0] == UNREADABLE, part[:, 0] == MISSING
                faults = [(unreadable, feature.unreadable), (missing, feature.missing)]
            else:
                faults = feature.rule.faults(part)
            for failed, fault in faults:
                for row in np.flatnonzero(failed):
                    found[row] = found[row] or f"{feature.name} {fault}"
        return found

    def rules(self) -> str | None:
        """Return what a request may hold, as JSON; None of a text, which may be any."""
        if self.tokenizer is not None:
            return None
        rules = [asdict(feature.rule) for feature in self.features]
        return json.dumps({"input": self.input.name, "features": rules}, indent=1)

    def to_json(self) -> str:
        """Return the encoding as JSON."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Encoding":
        """Read what `to_json` wrote."""
        values = bounded_json(text)
        features = tuple(
            Feature(**{**feature, "categories": tuple(feature["categories"])})
            for feature in values["features"]
        )
        tokenizer = values.get("tokenizer")
        return cls(
            features,
            values["target"],
            tuple(values["labels"]),
            values["target_mean"],
            values["target_std"],
            TextTokenizer(**tokenizer) if tokenizer else None,
        )


def text_request(texts: Sequence[str]) -> dict[str, Array]:
    """Return what a client sends of texts: `text`, `[rows, 1]`."""
    return {TEXT: np.array(texts, dtype=object).reshape(-1, 1)}


class _Moments:
    """Running count, sum and sum of squares in float64."""

    def __init__(self) -> None:
        self.count, self.total, self.squares = 0, 0.0, 0.0

    def add(self, values: Array) -> None:
        finite = values[np.isfinite(values)].astype(np.float64)
        self.count += finite.size
        self.total += float(finite.sum())
        self.squares += float(np.square(finite).sum())

    def mean_std(self) -> tuple[float, float]:
        mean = self.total / max(self.count, 1)
        variance = max(self.squares / max(self.count, 1) - mean * mean, 0.0)
        std = variance**0.5
        return mean, std if std > 1e-12 * max(abs(mean), 1.0) else 1.0


def text_column(schema: TableSchema) -> str | None:
    """Return the text that is learnt from; None where there is none.

    Raises:
        InputError: other columns are learnt from too.
    """
    texts = [name for name in schema.features if schema.column(name).type == TEXT]
    if texts and len(schema.features) > 1:
        raise InputError(
            "a model learns from one text, or from other columns",
            seen=", ".join(schema.features),
            valid=f"dataset.features: {texts[0]}",
            hint="join texts into one column in the data; leave the others out",
        )
    return texts[0] if texts else None


def fit_encoding(
    schema: TableSchema,
    batches: Iterable[pa.RecordBatch],
    tokenizer: TextTokenizer | None = None,
) -> Encoding:
    """Fit the encoding on the train split, one batch at a time.

    Args:
        schema: the columns that the snapshot holds.
        batches: rows of the train split, features and target.
        tokenizer: of a text; None where none is learnt from.
    """
    columns = {column.name: column for column in schema.columns}
    raw = [_unfitted(columns[name], tokenizer) for name in schema.features]
    moments = {f.name: _Moments() for f in raw if f.kind in ("number", "vector")}
    labels = columns[schema.target].categories or ()
    target = _Moments()
    for batch in batches:
        if not labels:
            target.add(batch[schema.target].to_numpy(zero_copy_only=False).astype(np.float64))
        for feature in raw:
            if feature.name in moments:
                moments[feature.name].add(_encode_column(feature, batch[feature.name]))
    features = tuple(_fitted(feature, moments.get(feature.name)) for feature in raw)
    return Encoding(features, schema.target, labels, *target.mean_std(), tokenizer)


def _unfitted(column: Column, tokenizer: TextTokenizer | None) -> Feature:
    if tokenizer is not None:
        return Feature(column.name, "text", tokenizer.max_tokens)
    if column.type == "category":
        return Feature(
            column.name, "category", 1, tuple(column.categories or ()), nullable=column.nullable
        )
    if column.type == "vector":
        return Feature(
            column.name,
            "vector",
            column.width or 0,
            nullable=column.nullable,
            min=column.min,
            max=column.max,
        )
    values: Literal["float", "int", "bool"] = "float"
    if column.type in ("int", "bool"):
        values = "int" if column.type == "int" else "bool"
    return Feature(
        column.name,
        "number",
        nullable=column.nullable,
        values=values,
        min=column.min,
        max=column.max,
    )


def _fitted(feature: Feature, moments: _Moments | None) -> Feature:
    if moments is None:
        return feature
    mean, std = moments.mean_std()
    return replace(feature, mean=mean, std=std)


def _one_chunk(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _encode_column(feature: Feature, column: pa.Array | pa.ChunkedArray) -> Array:
    """Return float32 `[rows, width]`."""
    array = _one_chunk(column)
    if feature.kind == "category":
        return _positions(array, feature.categories)[:, None]
    read = cast(array, Column(feature.name, _HELD[feature.kind]))
    if feature.kind == "vector":
        return _flattened(read, feature.width)
    numbers = read.values.to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):  # beyond float32 it is infinite, and told as such
        encoded = numbers.astype(np.float32)
    return np.where(read.unparsable, np.float32("inf"), encoded)[:, None]


def _flattened(read: Cast, width: int) -> Array:
    """Return lists as float32 `[rows, width]`, a null as NaN and another width as infinity."""
    lengths = pc.list_value_length(read.values)
    fits = mask(pc.equal(lengths, width))
    fitting = read.values if fits.all() else read.values.filter(pa.array(fits))
    flat = np.asarray(fitting.flatten().to_numpy(zero_copy_only=False)).reshape(-1, width)
    if fits.all():
        return flat
    whole = np.full((len(fits), width), np.inf, dtype=np.float32)
    whole[mask(pc.is_null(read.values)) & ~read.unparsable] = np.nan
    whole[fits] = flat
    return whole


def _positions(array: pa.Array, values: tuple[str | int | bool, ...]) -> Array:
    """Return the position of each element in `values` as float32, NaN where it is not there."""
    known = pa.array(values)
    read = cast(array, Column("", "category", values=_TYPES[type(values[0])]))
    found = pc.index_in(read.values, value_set=known)
    return np.asarray(found.cast(pa.float32()).to_numpy(zero_copy_only=False))
