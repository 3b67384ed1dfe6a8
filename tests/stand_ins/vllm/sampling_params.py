from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SamplingParams:
    max_tokens: int
    temperature: float
    repetition_penalty: float
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: tuple[str, ...] | list[str] = ()
    include_stop_str_in_output: bool = False
    structured_outputs: Any = None

    def __post_init__(self) -> None:
        """Refuse what is of another type, as vLLM's own does in one place or another."""
        assert isinstance(self.max_tokens, int)
        assert isinstance(self.temperature, float)
        assert isinstance(self.seed, int | None)
        assert isinstance(self.stop, tuple | list)
