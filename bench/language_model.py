"""The language models of the benchmarks, with random weights, and a Triton that serves them.

With random weights all layers contribute alike, and no draft could guess. So all layers but the
first are scaled down (`WEIGHT`), and the draft is the first layer with the same embedding and head:
a stand-in for a trained pair, whose guesses may be better or worse.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from bench.crowd import Passages
from bench.server import Bench, own_server
from millrace.export.language.language_variants import LANGUAGE_VARIANTS
from millrace.models.common.subprocess_runner import Limits, run_in_subprocess
from millrace.models.config.language_spec import GenerationSpec
from millrace.serving.triton.language.language_config import openvino_config
from millrace.serving.triton.model_config import latest, to_text
from millrace.serving.triton.streams.stream_client import StreamClient
from millrace.serving.triton.version_folder import DRAFT
from tests.language_model import byte_tokenizer, save

LIMITS = Limits(300, 8 * 2**30)
VOCABULARY = 4096
WEIGHT = 0.03
"""Factor of the outputs of the later layers."""


@dataclass(frozen=True)
class Shape:
    """The configuration of a Llama in transformers."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    num_hidden_layers: int
    max_position_embeddings: int = 1024


SMALL = Shape(640, 1760, 10, 5, 6)
"""33 million parameters."""
SERVED = Shape(576, 1536, 9, 3, 30)
"""The layers of SmolLM2-135M, about the smallest model in use, with a smaller vocabulary: 111
million parameters."""


@dataclass(frozen=True)
class WrittenModel:
    """A model, in the files of the engine and in transformers.

    Attributes:
        folder: a version's folder.
        drafted: the same with the draft.
        int8: the variant with 8-bit weights, as a pipeline makes it.
        model: of transformers.
        tokenizer: of transformers.
        text: the text that the tokenizer was trained on.
    """

    folder: Path
    drafted: Path
    int8: Path
    model: Any
    tokenizer: Any
    text: str

    def generate(
        self, prompts: list[str], most: int, least: int | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Continue prompts with transformers in one batch, padded on the left.

        Args:
            prompts: the prompts.
            most: largest number of new tokens.
            least: smallest number of new tokens; None for one.

        Returns:
            The attention mask of the prompts, and the new tokens, both `[prompts, tokens]`.
        """
        self.tokenizer.padding_side = "left"
        encoded = self.tokenizer(prompts, return_tensors="pt", padding=True)
        with torch.no_grad():
            found = self.model.generate(
                input_ids=encoded.input_ids,
                attention_mask=encoded.attention_mask,
                max_new_tokens=most,
                min_new_tokens=least,
                do_sample=False,
                pad_token_id=self.tokenizer.pad_token_id,
            )
        return encoded.attention_mask, found[:, encoded.input_ids.shape[1] :]


def write_model(folder: Path, shape: Shape) -> WrittenModel:
    """Write a model and its draft into a folder; the weights are always the same."""
    text = "".join(file.read_text() for file in sorted(Path(os.__file__).parent.glob("[a-d]*.py")))
    tokenizer = byte_tokenizer(text, VOCABULARY)
    model = _random_model(shape, len(tokenizer))
    draft = _random_model(replace(shape, num_hidden_layers=1), len(tokenizer))
    with torch.no_grad():
        for layer in model.model.layers[1:]:
            layer.self_attn.o_proj.weight.mul_(WEIGHT)
            layer.mlp.down_proj.weight.mul_(WEIGHT)
    draft.load_state_dict(model.state_dict(), strict=False)
    plain, drafted, int8 = folder / "plain", folder / "drafted", folder / "int8"
    save(plain, model, tokenizer)
    save(drafted / DRAFT, draft, tokenizer)
    for file in plain.iterdir():
        (drafted / file.name).symlink_to(file)
    variant = LANGUAGE_VARIANTS["openvino-int8"]
    run_in_subprocess(variant.program, [plain, int8, *variant.options], LIMITS)
    model.set_attn_implementation("sdpa")
    return WrittenModel(plain, drafted, int8, model, tokenizer, text)


def _random_model(shape: Shape, vocabulary: int) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        eos_token_id=0,
        bos_token_id=None,
        pad_token_id=1,
        **asdict(shape),
    )
    made = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    return made.eval()


def open_engine(folder: Path, sequences: int, *, caching: bool = True) -> Any:
    """Open the engine in this process, like the backend; with the draft if the folder has one.

    Args:
        folder: the version's.
        sequences: number of answers at a time.
        caching: whether prefixes are cached; not with a draft.
    """
    import openvino_genai as genai

    schedule = genai.SchedulerConfig()
    schedule.cache_size, schedule.max_num_seqs = 1, sequences
    schedule.enable_prefix_caching = caching
    exact = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
    options: dict[str, Any] = dict(exact)
    if (folder / DRAFT).is_dir():
        options["draft_model"] = genai.draft_model(str(folder / DRAFT), "CPU", **exact)
    return genai.ContinuousBatchingPipeline(str(folder), schedule, "CPU", options)


@dataclass(frozen=True)
class Stand:
    """A model and a server.

    Attributes:
        made: the model.
        bench: the server.
        client: of the server.
    """

    made: WrittenModel
    bench: Bench
    client: StreamClient

    @contextmanager
    def serving(
        self, name: str, generation: GenerationSpec, folder: Path | None = None
    ) -> Iterator[str]:
        """Serve a variant of the model under a name; with its draft if the spec has one."""
        target = self.bench.repository.root / name
        target.mkdir()
        whole = self.made.drafted if generation.draft else self.made.folder
        (target / "1").symlink_to(folder or whole)
        config = openvino_config(name, generation, version_policy=latest())
        (target / "config.pbtxt").write_text(to_text(config))
        self.bench.client.load(name)
        try:
            yield name
        finally:
            self.bench.client.unload(name)

    def passages(self, characters: int, prefix: str = "") -> Passages:
        """Return parts of the model's text; every call returns the same ones."""
        return Passages(self.made.text[len(prefix) :], characters, prefix)


@contextmanager
def own_stand(shape: Shape) -> Iterator[Stand]:
    """Write a model with random weights, and start a server for it."""
    with (
        tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder,
        own_server() as bench,
        StreamClient(bench.client.endpoint) as client,
    ):
        yield Stand(write_model(Path(folder), shape), bench, client)
