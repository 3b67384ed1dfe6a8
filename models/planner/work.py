"""What a pipeline asks of a machine, as the kind of its model says it: the input of a plan.

The three stages of one model are different jobs. Each is described by what it computes and keeps,
in the model's own unit: rows, or tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from millrace.models.planner.decoder import Decoder

Engine = Literal["onnxruntime", "trees", "openvino"]


@dataclass(frozen=True)
class TrainingWork:
    """The training of a model.

    Attributes:
        workers: number of workers, one device each.
        step_units: units that one worker processes in a step.
        steps: number of steps; None: not known before the data is ingested.
        flops_per_unit: operations of a unit, forward and backward.
        memory: bytes on a worker, by what they are for.
        bytes_per_step: bytes that a worker reads and writes in a step.
        kernels: operations that a worker starts in a step.
        gradient_bytes: bytes of the gradients, which workers share in each step.
        data_type: data type of the matrix products.
        bytes_per_unit: bytes of a unit of the dataset.
        checkpoint_bytes: bytes of a checkpoint.
        items: rows or sequences that Python handles in a step of a worker.
        engine: what trains.
        strategy: what the workers share: ddp, fsdp or tp.
        threads: threads of each worker on a CPU; None: its share of the cores.
        reads_texts: whether a row is a text, whose libraries each worker loads.
    """

    workers: int
    step_units: float
    steps: int | None
    flops_per_unit: float
    memory: Mapping[str, float]
    bytes_per_step: float
    kernels: int
    gradient_bytes: float
    data_type: str
    bytes_per_unit: float
    checkpoint_bytes: float
    items: float = 0.0
    engine: Literal["torch", "xgboost"] = "torch"
    strategy: str = "ddp"
    threads: int | None = 1
    reads_texts: bool = False


@dataclass(frozen=True)
class Variant:
    """An exported variant that may be served.

    Attributes:
        name: its name in `export.candidates`.
        data_type: data type of its weights.
        weight_bytes: bytes of its weights.
    """

    name: str
    data_type: str
    weight_bytes: float


@dataclass(frozen=True)
class Generation:
    """How a decoder generates.

    Attributes:
        decoder: the decoder.
        streams: sequences that are generated at a time.
        context: tokens of the longest sequence.
        prompt_tokens: tokens of a prompt.
        output_tokens: tokens of an answer.
        cache_bytes: bytes that are set aside for the KV cache.
        kv_data_type: data type of the cache.
        tensor_parallel: devices that share each layer.
    """

    decoder: Decoder
    streams: int
    context: int
    prompt_tokens: int
    output_tokens: int
    cache_bytes: float
    kv_data_type: str = "fp16"
    tensor_parallel: int = 1


@dataclass(frozen=True)
class ServingWork:
    """The answering of requests, online or in a batch job.

    Attributes:
        variants: the variants of which one is served.
        flops_per_unit: operations of a unit.
        activation_flops: those of them between two activations, which stay in float32 where the
            weights are integers.
        function_elements: elements of softmax, normalizations, GELU and the like of a unit; of
            trees the nodes that it visits.
        bytes_per_unit: bytes of the activations of a unit, read and written.
        kernels: operations that a call of the model starts.
        call_units: units of a full call.
        instances: instances of the model, or actors of the batch job.
        engine: what answers: a graph, trees in a graph, or a decoder's engine.
        threads: threads of each; None: all cores.
        input_bytes: bytes of a unit's input.
        output_bytes: bytes of a unit's answer.
        generation: how a decoder generates; None for a model that answers in one call.
        measured_prompt: tokens of the prompt that the export measures a decoder's latency with.
    """

    variants: tuple[Variant, ...]
    flops_per_unit: float
    bytes_per_unit: float
    kernels: int
    call_units: int
    instances: int
    threads: int | None
    input_bytes: float
    output_bytes: float
    generation: Generation | None = None
    engine: Engine = "onnxruntime"
    measured_prompt: int = 0
    activation_flops: float = 0.0
    function_elements: float = 0.0


@dataclass(frozen=True)
class Work:
    """The three jobs of one pipeline.

    Attributes:
        model: name of the model.
        unit: what is counted: rows or tokens.
        parameters: number of parameters.
        training: the training.
        online: the service.
        batch: the nightly job.
        batch_units: units of a nightly job; None: not known.
        facts: other numbers worth showing, by name.
    """

    model: str
    unit: str
    parameters: int
    training: TrainingWork
    online: ServingWork
    batch: ServingWork
    batch_units: float | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
