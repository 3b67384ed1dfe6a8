"""`python -m serving.language.alone FOLDER TOKENS`: continue the texts on stdin, greedily.

The texts are a JSON list, and so are the answers, the last line on stdout. A release runs it before
a server loads the model, with limits on time and memory: what hangs or crashes takes nothing with
it. If the folder has a draft, that is opened and asked too.
"""

import json
import sys
from pathlib import Path
from typing import Any

from models.engine_properties import own_properties
from serving.language.draft import DRAFT

DRAFTED = 2
"""Tokens at a time."""
THREADS = {"INFERENCE_NUM_THREADS": 1}


def main() -> None:
    """Open the model and answer."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    import openvino_genai as genai

    folder, texts = Path(sys.argv[1]), json.loads(sys.stdin.buffer.read())
    scheduler, config = genai.SchedulerConfig(), genai.GenerationConfig()
    scheduler.cache_size = 1
    config.max_new_tokens, config.do_sample = int(sys.argv[2]), False
    config.apply_chat_template = False  # as serving and batch
    properties: dict[str, Any] = {**own_properties(folder), **THREADS}
    if (draft := folder / DRAFT).is_dir():
        own = {**own_properties(draft), **THREADS}
        properties["draft_model"] = genai.draft_model(draft, "CPU", **own)
        config.num_assistant_tokens = DRAFTED
    pipeline = genai.ContinuousBatchingPipeline(folder, scheduler, "CPU", properties)
    found = pipeline.generate(texts, [config] * len(texts))
    sys.stdout.write("\n" + json.dumps([each.m_generation_ids[0] for each in found]) + "\n")


if __name__ == "__main__":
    main()
