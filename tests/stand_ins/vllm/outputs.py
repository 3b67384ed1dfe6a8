from dataclasses import dataclass


@dataclass
class Metrics:
    num_generation_tokens: int = 1
    first_token_latency: float = 0.5


@dataclass
class CompletionOutput:
    text: str
    token_ids: list[int]
    logprobs: None = None


@dataclass
class RequestOutput:
    request_id: str
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt: str | None = None
    prompt_logprobs: None = None
    metrics: Metrics | None = None
    finished: bool = True


class PoolingRequestOutput:
    pass
