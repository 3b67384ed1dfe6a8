"""Encodes the columns of a table as the one tensor that a model reads.

The tensor is `features`, float32 `[rows, raw_width]`: numbers as they are, a vector column
flattened in place, and a category as the index of its value in `Feature.categories`. Scaling,
one-hot encoding and the replacement of missing values are in the exported ONNX graph
(`millrace.models.families.network`), so clients send raw values and the artifact is complete. For a
text the tensor is `input_ids`, int64 `[rows, tokens]`; the client sends `text`, which Triton
tokenizes in a step before the ONNX graph.
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
from millrace.models.config.dataset_spec import NULL_VALUES, ColumnType
from millrace.models.data.coerce import Cast, cast, mask, plain
from millrace.models.data.schema import Column, TableSchema, ValueType
from millrace.models.inference.model_input import FEATURES, INPUT_IDS, ModelInput
from millrace.models.inference.tokenizer import MISSING, UNREADABLE, TextTokenizer

TEXT: Literal["text"] = "text"
"""Name of the input that a client sends for a text, and kind of the text's feature."""

LARGEST = float(np.finfo(np.float32).max)
ABSENT = "is missing"
UNKNOWN = "is an unknown category"
NOT_BOOL = "is not true or false"

_NUMBERS: dict[str, ColumnType] = {"float": "float", "int": "float", "bool": "bool"}
_VALUE_TYPES: dict[type, ValueType] = {str: "string", int: "int", bool: "bool"}


@dataclass(frozen=True)
class Feature:
    """One column as the model sees it.

    Attributes:
        name: the column.
        kind: `number`, `category`, `vector` or `text`.
        width: number of its values in a row of the tensor.
        categories: the values of a category, in the order of their codes.
        mean: mean over the train split without nulls; for a vector, of all elements.
        std: standard deviation over the train split without nulls; 1 for a constant column.
        nullable: whether missing values, which are sent as NaN, are accepted.
        values: what a number may be: any number, a whole number, or 1 and 0 for true and false.
        min: smallest value allowed, for a vector of each element; None: no limit, as in versions
            from an earlier Millrace.
        max: largest value allowed; for vectors and None, see `min`.
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
    def unreadable(self) -> str:
        """The error of a row in which the feature is infinite."""
        if self.kind == "text":
            return "is not text"
        if self.kind == "category":
            return UNKNOWN
        if self.values == "bool":
            return NOT_BOOL
        numbers = f"{self.width} finite numbers" if self.kind == "vector" else "a finite number"
        return f"is not {numbers}"

    @property
    def rule(self) -> "Rule":
        """The rule for the feature's values in the tensor."""
        if self.kind == "category" or self.values == "bool":
            last = len(self.categories) - 1 if self.kind == "category" else 1
            outside = UNKNOWN if self.kind == "category" else NOT_BOOL
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
        return Rule(self.name, self.width, self.nullable, ABSENT, self.unreadable, *limits)

    @property
    def faults(self) -> tuple[str, ...]:
        """All errors that the feature may cause in a row."""
        rule = self.rule
        return (rule.missing, rule.unreadable, rule.below, rule.above, rule.fraction)


@dataclass(frozen=True)
class Rule:
    """The values that a feature may have, and the errors of a row with other values.

    Rules are also stored beside a served ONNX graph, where Triton checks requests by them
    (`serving/triton/backends/onnxruntime/input_rules.py`).

    Attributes:
        name: the column.
        width: number of its values in a row.
        nullable: whether NaN is accepted.
        missing: error for NaN.
        unreadable: error for an infinity.
        low: smallest value, in float32.
        high: largest value, in float32.
        whole: whether the values must be whole numbers.
        below: error for a value below `low`.
        above: error for a value above `high`.
        fraction: error for a fraction.
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
        """Return, for each check of `[rows, width]`, the mask of failing rows, and the error.

        The error of a row is that of the first check that it fails.
        """
        faults = [(np.isinf(part), self.unreadable)]
        if not self.nullable:
            faults.append((np.isnan(part), self.missing))
        if self.whole:
            faults.append((part != np.floor(part), self.fraction))
        faults += [(part < self.low, self.below), (part > self.high, self.above)]
        if self.nullable:
            faults = [(failed & ~np.isnan(part), error) for failed, error in faults]
        return [(failed.any(axis=1), error) for failed, error in faults]


@dataclass(frozen=True)
class Encoding:
    """How rows become tensors; stored with every model version as `encoding.json`.

    Attributes:
        features: the features, in the order of the tensor.
        target: the column that is predicted.
        labels: the classes in the order of the model's outputs; empty for regression.
        target_mean: mean of a regression's target over the train split.
        target_std: standard deviation of a regression's target. The network learns in this unit, so
            that one learning rate suits large and small targets. The exported ONNX graph converts
            the answers back.
        tokenizer: tokenizer of the only feature, if that is a text; else None.
        null_values: words that are read as missing numbers.
    """

    features: tuple[Feature, ...]
    target: str
    labels: tuple[str | int | bool, ...] = ()
    target_mean: float = 0.0
    target_std: float = 1.0
    tokenizer: TextTokenizer | None = None
    null_values: tuple[str, ...] = NULL_VALUES

    @property
    def input(self) -> ModelInput:
        """The tensor that the exported ONNX graph reads."""
        if self.tokenizer is None:
            return ModelInput(FEATURES, self.raw_width)
        return ModelInput(INPUT_IDS, self.raw_width, self.tokenizer.padding)

    @property
    def raw_width(self) -> int:
        """Width of the served tensor."""
        return sum(feature.width for feature in self.features)

    @property
    def in_features(self) -> int:
        """Width of the network's input after preprocessing, where categories are one-hot."""
        return sum(len(f.categories) or f.width for f in self.features)

    def encode(self, rows: pa.RecordBatch | pa.Table) -> Array:
        """Return rows as float32 `[rows, raw_width]`; a text as int64 tokens, padded to that width.

        A null becomes NaN. An unknown category, and a cell that cannot be read as a number or as a
        vector of the right width, becomes infinite, which no column accepts. A row without a
        readable text begins with a negative token.
        """
        if self.tokenizer is not None:
            return self._tokenize(self.tokenizer, rows[self.features[0].name])
        encoded = np.empty((rows.num_rows, self.raw_width), np.float32)
        start = 0
        for feature in self.features:
            values = _encode_column(feature, rows[feature.name], self.null_values)
            encoded[:, start : start + feature.width] = values
            start += feature.width
        return encoded

    def request(self, rows: pa.RecordBatch | pa.Table) -> dict[str, Array]:
        """Return the request for rows without errors: `features`, or `text`."""
        if self.tokenizer is None:
            return {FEATURES: self.encode(rows)}
        texts = cast(_one_chunk(rows[self.features[0].name]), Column("", TEXT)).values
        return text_request(texts.to_pylist())

    def _tokenize(self, tokenizer: TextTokenizer, column: pa.Array | pa.ChunkedArray) -> Array:
        read = cast(plain(_one_chunk(column)), Column("", TEXT))
        tokens = tokenizer.ids(read.values.to_pylist())
        tokens[read.unparsable, 0] = UNREADABLE
        return tokens

    def encode_target(self, rows: pa.RecordBatch | pa.Table) -> Array:
        """Return the target: int64 `[rows]` indices of `labels`, or float32 `[rows]` values."""
        column = _one_chunk(rows[self.target])
        if not self.labels:
            return np.array(column.cast(pa.float32(), safe=False).to_numpy(zero_copy_only=False))
        return _codes(column, self.labels, self.null_values).astype(np.int64)

    def encode_for_comparison(self, rows: pa.RecordBatch | pa.Table) -> Array:
        """Return rows of a later snapshot, as `encode` does, with unknown categories as missing.

        A version that is compared on rows with newer categories is asked all of them.
        """
        encoded = self.encode(rows)
        if self.tokenizer is None:
            encoded[np.isinf(encoded)] = np.nan
        return encoded

    def errors(self, encoded: Array) -> list[str | None]:
        """Return why each encoded row cannot be answered; None for a row that can be.

        Args:
            encoded: the tensor that `encode` returned.
        """
        errors: list[str | None] = [None] * len(encoded)
        position = 0
        for feature in self.features:
            part = encoded[:, position : position + feature.width]
            position += feature.width
            if feature.kind == TEXT:
                unreadable, missing = part[:, 0] == UNREADABLE, part[:, 0] == MISSING
                faults = [(unreadable, feature.unreadable), (missing, ABSENT)]
            else:
                faults = feature.rule.faults(part)
            for failed, fault in faults:
                for row in np.flatnonzero(failed):
                    errors[row] = errors[row] or f"{feature.name} {fault}"
        return errors

    def rules(self) -> str | None:
        """Return the rules for requests as JSON; None for a text, which has no rules."""
        if self.tokenizer is not None:
            return None
        rules = [asdict(feature.rule) for feature in self.features]
        return json.dumps({"input": self.input.name, "features": rules}, indent=1)

    def to_json(self) -> str:
        """Return the encoding as JSON."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Encoding":
        """Read the JSON that `to_json` wrote."""
        values = bounded_json(text)
        tokenizer = values.get("tokenizer")
        return cls(
            features=tuple(
                Feature(**{**feature, "categories": tuple(feature["categories"])})
                for feature in values["features"]
            ),
            target=values["target"],
            labels=tuple(values["labels"]),
            target_mean=values["target_mean"],
            target_std=values["target_std"],
            tokenizer=TextTokenizer(**tokenizer) if tokenizer else None,
            null_values=tuple(values.get("null_values", NULL_VALUES)),
        )


def text_request(texts: Sequence[str]) -> dict[str, Array]:
    """Return the request for texts: `text`, `[rows, 1]`."""
    return {TEXT: np.array(texts, dtype=object).reshape(-1, 1)}


class _Moments:
    """Running count, sum and sum of squares in float64."""

    def __init__(self) -> None:
        self.count, self.total, self.squares = 0, 0.0, 0.0

    def add(self, values: Array) -> None:
        is_finite = np.isfinite(values)
        finite = (values if is_finite.all() else values[is_finite]).astype(np.float64)
        self.count += finite.size
        self.total += float(finite.sum())
        self.squares += float(np.square(finite).sum())

    def mean_std(self) -> tuple[float, float]:
        mean = self.total / max(self.count, 1)
        variance = max(self.squares / max(self.count, 1) - mean * mean, 0.0)
        std = variance**0.5
        return mean, std if std > 1e-12 * max(abs(mean), 1.0) else 1.0


def text_column(schema: TableSchema) -> str | None:
    """Return the name of the text feature; None if there is none.

    Raises:
        InputError: there is a text feature, and other features too.
    """
    texts = [name for name in schema.features if schema.column(name).type == TEXT]
    if texts and len(schema.features) > 1:
        raise InputError(
            "a model learns either from one text column, or from columns of other types",
            seen=", ".join(schema.features),
            valid=f"dataset.features: {texts[0]}",
            hint="join texts into one column in the data, and leave the other columns out",
        )
    return texts[0] if texts else None


def fit_encoding(
    schema: TableSchema,
    batches: Iterable[pa.RecordBatch],
    tokenizer: TextTokenizer | None = None,
) -> Encoding:
    """Fit the encoding on the train split, one batch at a time.

    Args:
        schema: the columns of the snapshot.
        batches: rows of the train split, features and target.
        tokenizer: tokenizer of the text feature; None if there is no text feature.
    """
    columns = {column.name: column for column in schema.columns}
    raw = [_make_feature(columns[name], tokenizer) for name in schema.features]
    moments = {feature.name: _Moments() for feature in raw}
    labels = columns[schema.target].categories or ()
    target = _Moments()
    for batch in batches:
        if not labels:
            target.add(batch[schema.target].to_numpy(zero_copy_only=False).astype(np.float64))
        for feature in raw:
            if feature.kind in ("number", "vector"):
                column = batch[feature.name]
                moments[feature.name].add(_encode_column(feature, column, schema.null_values))
    features = []
    for feature in raw:
        mean, std = moments[feature.name].mean_std()
        features.append(replace(feature, mean=mean, std=std))
    mean, std = target.mean_std()
    nulls = schema.null_values
    return Encoding(tuple(features), schema.target, labels, mean, std, tokenizer, nulls)


def _make_feature(column: Column, tokenizer: TextTokenizer | None) -> Feature:
    """Return the feature of a column, before its mean and deviation are fitted."""
    if tokenizer is not None:
        return Feature(column.name, "text", tokenizer.max_tokens)
    number = Feature(
        column.name, "number", nullable=column.nullable, min=column.min, max=column.max
    )
    if column.type == "category":
        return replace(number, kind="category", categories=column.categories or ())
    if column.type == "vector":
        return replace(number, kind="vector", width=column.width or 0)
    if column.type in ("int", "bool"):
        return replace(number, values=column.type)
    return number


def _one_chunk(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _encode_column(
    feature: Feature, column: pa.Array | pa.ChunkedArray, null_values: Sequence[str]
) -> Array:
    """Return a column as float32 `[rows, width]`."""
    array = _one_chunk(column)
    if feature.kind == "category":
        return _codes(array, feature.categories, null_values)[:, None]
    if feature.kind == "vector":
        return _flatten(cast(array, Column(feature.name, "vector"), null_values), feature.width)
    read = cast(array, Column(feature.name, _NUMBERS[feature.values]), null_values)
    numbers: Array = read.values.cast(pa.float64()).to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):  # numbers beyond float32 become infinite, and are reported
        encoded = numbers.astype(np.float32)
    encoded[read.unparsable] = np.inf
    return encoded[:, None]


def _flatten(read: Cast, width: int) -> Array:
    """Return lists as float32 `[rows, width]`; a null becomes NaN, a list of another width inf."""
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


def _codes(
    array: pa.Array, values: tuple[str | int | bool, ...], null_values: Sequence[str]
) -> Array:
    """Return the index of each cell in `values`, float32; a null is NaN, another value infinite."""
    kind = _VALUE_TYPES[type(values[0])]
    read = cast(array, Column("", "category", categories=values, values=kind), null_values)
    found = pc.index_in(read.values, value_set=pa.array(values))
    codes = np.asarray(found.cast(pa.float32()).to_numpy(zero_copy_only=False))
    if not found.null_count:
        return codes
    unknown = mask(pc.is_valid(read.values)) & mask(pc.is_null(found))
    return np.where(unknown | read.unparsable, np.float32(np.inf), codes)
