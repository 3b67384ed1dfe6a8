"""What the program that builds engines calls of TensorRT 11, by the names in its bindings.

An engine is what was asked for, as JSON. One called `refused` is not parsed, `unbuilt` not built.
"""

import json
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import onnx

BuilderFlag = IntEnum("BuilderFlag", ["TF32"])
NetworkDefinitionCreationFlag = IntEnum("NetworkDefinitionCreationFlag", {"STRONGLY_TYPED": 1})
MemoryPoolType = IntEnum("MemoryPoolType", ["WORKSPACE"])


class Logger:
    ERROR = 1

    def __init__(self, severity: int) -> None:
        self.severity = severity


class OnnxParser:
    def __init__(self, network: Any, logger: Logger) -> None:
        self.network, self.num_errors = network, 0

    def parse(self, model: bytes) -> bool:
        self.network.name = onnx.load_from_string(model).graph.name
        self.num_errors = int(self.network.name == "refused")
        return not self.num_errors

    def get_error(self, index: int) -> str:
        return f"error {index}: no such operator"


class Profile:
    def __init__(self) -> None:
        self.shapes: dict[str, Any] = {}

    def set_shape(self, name: str, *sizes: tuple[int, ...]) -> None:
        self.shapes[name] = sizes


class BuilderConfig:
    def __init__(self) -> None:
        self.said: dict[str, Any] = {}

    def clear_flag(self, flag: BuilderFlag) -> None:
        self.said["cleared"] = flag.name

    def set_memory_pool_limit(self, pool: MemoryPoolType, size: int) -> None:
        self.said[pool.name] = size

    def add_optimization_profile(self, profile: Profile) -> int:
        self.said["shapes"] = profile.shapes
        return 0

    def create_timing_cache(self, known: bytes) -> bytes:
        return known

    def set_timing_cache(self, cache: bytes, ignore_mismatch: bool) -> bool:
        self.said["timing cache"] = cache.decode()
        self.said["ignore mismatch"] = ignore_mismatch
        return True

    def get_timing_cache(self) -> Any:
        return SimpleNamespace(serialize=lambda: self.said["timing cache"].encode() + b"+")


class Builder:
    def __init__(self, logger: Logger) -> None:
        self.logger = logger

    def create_network(self, flags: int) -> Any:
        return SimpleNamespace(flags=flags, name="")

    def create_builder_config(self) -> BuilderConfig:
        return BuilderConfig()

    def create_optimization_profile(self) -> Profile:
        return Profile()

    def build_serialized_network(self, network: Any, config: BuilderConfig) -> bytes | None:
        if network.name == "unbuilt":
            return None
        return json.dumps({"flags": network.flags, **config.said}).encode()
