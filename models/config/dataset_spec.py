"""The part `dataset`: where the rows come from, and what they must hold."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from millrace.models.config import OneOf, Spec

ColumnType = Literal["float", "int", "bool", "string", "category", "vector", "text", "messages"]

TEXTS: tuple[ColumnType, ...] = ("text", "messages")
"""Column types of a target that a language model learns token by token."""

NULL_VALUES = ("", "NA", "N/A", "na", "n/a", "NaN", "nan", "null", "NULL", "None", "#N/A")
"""Words that are read as null where the pipeline file names none."""

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")

SOURCES = "millrace.models.data.sources"


@dataclass(frozen=True)
class FileFormat:
    """A format of files with rows.

    Attributes:
        endings: endings of the file names.
        source: the class that reads such files, a `FileSource`, as `module:Class`.
    """

    endings: tuple[str, ...]
    source: str


FILE_FORMATS: Mapping[str, FileFormat] = {
    "parquet": FileFormat((".parquet", ".pq"), f"{SOURCES}.arrow_source:ParquetSource"),
    "csv": FileFormat((".csv", ".tsv"), f"{SOURCES}.csv_source:CsvSource"),
    "jsonl": FileFormat((".jsonl", ".ndjson", ".json"), f"{SOURCES}.jsonl_source:JsonlSource"),
}
"""The file formats that datasets and batch jobs read, by the name in `dataset.format`."""
FormatName = Annotated[str, OneOf(lambda: ("auto", *FILE_FORMATS, "text", "delta"))]


class ColumnSpec(Spec):
    """What a column must hold. A row that violates it goes into quarantine with the reason."""

    type: ColumnType | None = Field(
        None,
        description="float, int, bool, string (stored, but not learnt from), category (string or "
        "integer codes with a known set of values), vector (a list of floats of one length), text "
        "(for text_classifier and causal_lm) or messages (of a chat, a list of {role, content}, "
        "for causal_lm). Inferred when left out; text and messages are inferred only where "
        "features is [].",
    )
    min: float | None = Field(None, description="Smallest value allowed.")
    max: float | None = Field(None, description="Largest value allowed.")
    nullable: bool = Field(
        False, description="Accept null and NaN; in a feature the train split's mean replaces them."
    )
    categories: tuple[str | int | bool, ...] | None = Field(
        None, description="The values allowed; taken from the data when left out."
    )

    @property
    def declared_type(self) -> ColumnType | None:
        """The declared type; a column with declared categories has the type category."""
        return self.type or (None if self.categories is None else "category")

    @model_validator(mode="after")
    def _require_learnable(self) -> "ColumnSpec":
        if self.type in TEXTS and self.nullable:
            raise ValueError(
                "a text cannot be nullable, because there is nothing to learn from a missing text; "
                "leave such rows out, or raise dataset.max_quarantine"
            )
        return self


class SplitSpec(Spec):
    """Shares of the three splits. They must add up to 1."""

    train: float = Field(0.8, gt=0, lt=1, description="Share of rows to train on.")
    validation: float = Field(0.1, gt=0, lt=1, description="Share of rows to validate on.")
    test: float = Field(0.1, gt=0, lt=1, description="Share of rows that only the gates see.")

    @model_validator(mode="after")
    def _require_sum(self) -> "SplitSpec":
        if abs(self.train + self.validation + self.test - 1) > 1e-6:
            raise ValueError("train, validation and test must add up to 1")
        return self


def _wrap_name(value: object) -> object:
    """Accept `key: id` as short for `key: [id]`."""
    return [value] if isinstance(value, str) else value


Names = Annotated[
    tuple[str, ...],
    BeforeValidator(_wrap_name, json_schema_input_type=tuple[str, ...] | str),
]
"""Names of columns; a single name may be written without a list."""


class DatasetSpec(Spec):
    """Where the rows come from, and what they must hold."""

    source: str = Field(
        min_length=1,
        description="A file, a glob or a URI of Parquet, CSV, JSON Lines or plain text (one row "
        "for each file: path and text); a Delta table; sklearn:NAME; or module:function that "
        "yields pyarrow record batches, from a module beside the pipeline file.",
    )
    format: FormatName = Field("auto", description="Format of the source; auto: by its ending.")
    target: str = Field(
        description="The column to predict; for causal_lm the text, the answer or the messages."
    )
    key: Names = Field(
        (), description="Columns that identify a row; a hash of the whole row when left out."
    )
    features: Names | None = Field(
        None,
        description="Columns to learn from; all but the key and the target when left out. For "
        "causal_lm: [], or the column of the prompt that the target answers.",
    )
    task: Literal["classification", "regression"] | None = Field(
        None,
        description="What the target is: classes or a number. Inferred when left out: text, "
        "booleans and few different whole numbers are classes; fractions, and many different whole "
        "numbers with few rows each, are a number. Fixed from the first snapshot on.",
    )
    columns: dict[str, ColumnSpec] = Field(
        default_factory=dict,
        description="Declared columns; the others are inferred, and then fixed.",
    )
    null_values: tuple[str, ...] = Field(
        NULL_VALUES,
        description="Words that are read as null in numbers, booleans and categories; [] for none. "
        "Texts, messages, keys and columns of the type string keep them.",
    )
    split: SplitSpec = Field(default_factory=SplitSpec, description="Shares of the splits.")
    mode: Literal["auto", "full"] = Field(
        "auto",
        description="auto reads only new and changed files of the source; full reads all of it.",
    )
    max_quarantine: float = Field(
        0.05, ge=0, le=1, description="Share of bad rows above which ingestion fails."
    )

    @property
    def continued(self) -> bool:
        """Whether the target is text that a language model learns to continue."""
        return self.features == () or self.column(self.target).type in TEXTS

    def column(self, name: str) -> ColumnSpec:
        """Return the declaration of a column; an empty declaration if the file has none."""
        return self.columns.get(name, ColumnSpec())
