"""A variant of a language model: one folder that its engine loads directly."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from millrace.models.common.digest import digest_of_all
from millrace.models.common.errors import InputError
from millrace.models.inference.language_engine import EngineName, engine_of, own_properties

IR = "openvino_model"
TOKENIZER, DETOKENIZER = "openvino_tokenizer", "openvino_detokenizer"
GRAPHS = (IR, TOKENIZER, DETOKENIZER)
CONFIG, GENERATION = "config.json", "generation_config.json"
NEEDED = (
    *(f"{graph}.{part}" for graph in GRAPHS for part in ("xml", "bin")),
    *(CONFIG, GENERATION, "tokenizer.json", "tokenizer_config.json"),
)
ONNX_CONFIG = "genai_config.json"
ONNX_NEEDED = ("model.onnx", ONNX_CONFIG, "tokenizer.json", "tokenizer_config.json")
"""Required files of a variant for onnxruntime-genai."""
VLLM_NEEDED = (CONFIG, "tokenizer.json", "tokenizer_config.json")
"""Required files of a variant for vLLM, beside its weights."""


@dataclass(frozen=True)
class VariantFolder:
    """The folder of a variant, with all required files.

    Attributes:
        path: path of the folder.
        files: paths of all files, by their names relative to the folder.
    """

    path: Path
    files: Mapping[str, Path]

    @classmethod
    def read(cls, path: Path) -> "VariantFolder":
        """Return the variant in a folder, after a check that no required file is missing.

        Raises:
            InputError: a required file is missing.
        """
        files = {
            file.relative_to(path).as_posix(): file
            for file in sorted(path.rglob("*"))
            if file.is_file()
        }
        needed = ONNX_NEEDED if ONNX_CONFIG in files else NEEDED
        if engine_of(files) == "vllm":
            needed = VLLM_NEEDED
        if missing := [name for name in needed if name not in files]:
            raise InputError(
                f"the variant's folder {path} lacks files",
                seen=f"no {', '.join(missing)}",
                valid=", ".join(needed),
            )
        return cls(path, files)

    @property
    def is_onnx(self) -> bool:
        """Whether the variant is for onnxruntime-genai."""
        return ONNX_CONFIG in self.files

    @property
    def engine(self) -> EngineName:
        """The engine that the variant is for."""
        return engine_of(self.files)

    @property
    def ir(self) -> Path:
        """The path of the OpenVINO model (IR)."""
        return self.files[f"{IR}.xml"]

    @property
    def properties(self) -> dict[str, str]:
        """OpenVINO properties that the engine needs for this variant."""
        return own_properties(self.path)

    @property
    def digest(self) -> str:
        """SHA-256 over the names and digests of all files, in hexadecimal."""
        return digest_of_all(self.files)

    @property
    def size_bytes(self) -> int:
        """Size of all files in bytes."""
        return sum(file.stat().st_size for file in self.files.values())
