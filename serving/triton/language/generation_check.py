"""Continue texts greedily: `python -m millrace.serving.triton.language.generation_check FOLDER N`.

Stdin has the texts as a JSON list; the last line of stdout has the answers as a JSON list. N is the
largest number of tokens of an answer. A release runs this program before a server loads the model,
with limits on time and memory, so that a model that hangs or crashes does no harm. If the folder
has a draft model, the engine uses the draft.
"""

import json
import sys
from pathlib import Path
from typing import Any

from millrace.models.common.language_generation import ends_of, greedy_config, prompt_ids, shown_ids
from millrace.models.inference.language_engine import own_properties
from millrace.serving.triton.version_folder import DRAFT

ASSISTANT_TOKENS = 2
"""Number of tokens that the draft model proposes at a time."""
THREADS = {"INFERENCE_NUM_THREADS": 1}


def main() -> None:
    """Open the model, and write the model's answers to stdout."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    import openvino as ov
    import openvino_genai as genai

    folder, texts = Path(sys.argv[1]), json.loads(sys.stdin.buffer.read())
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 1
    properties: dict[str, Any] = {**own_properties(folder), **THREADS}
    if (draft := folder / DRAFT).is_dir():
        own = {**own_properties(draft), **THREADS}
        properties["draft_model"] = genai.draft_model(draft, "CPU", **own)
    pipeline = genai.ContinuousBatchingPipeline(folder, scheduler, "CPU", properties)
    tokenizer, defaults = pipeline.get_tokenizer(), pipeline.get_config()
    config = greedy_config(defaults, int(sys.argv[2]))
    if draft.is_dir():
        config.num_assistant_tokens = ASSISTANT_TOKENS
    ids = [ov.Tensor(prompt_ids(tokenizer, text, is_chat=False)) for text in texts]
    found = pipeline.generate(ids, [config] * len(ids))
    shown = [list(shown_ids(each.m_generation_ids[0], ends_of(defaults))) for each in found]
    answers = [str(text) for text in tokenizer.decode(shown)]
    sys.stdout.write("\n" + json.dumps(answers) + "\n")


if __name__ == "__main__":
    main()
