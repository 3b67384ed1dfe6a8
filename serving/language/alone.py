"""`python -m serving.language.alone FOLDER`: open a language model and continue the text on stdin.

A release runs it before a server loads the model, with limits on time and memory: what hangs or
crashes takes nothing with it. What it is run for is to see it end well: nobody reads the answer.
If the folder has a draft, that is opened and asked too.
"""

import sys
from pathlib import Path
from typing import Any

from models.engine_properties import own_properties
from serving.language.draft import DRAFT

NEW_TOKENS = 2
THREADS = {"INFERENCE_NUM_THREADS": 1}


def main() -> None:
    """Open the model and answer once."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    import openvino_genai as genai

    folder, text = Path(sys.argv[1]), sys.stdin.buffer.read().decode()
    scheduler, config = genai.SchedulerConfig(), genai.GenerationConfig()
    scheduler.cache_size = 1
    config.max_new_tokens, config.do_sample = NEW_TOKENS, False
    properties: dict[str, Any] = {**own_properties(folder), **THREADS}
    if (draft := folder / DRAFT).is_dir():
        own = {**own_properties(draft), **THREADS}
        properties["draft_model"] = genai.draft_model(draft, "CPU", **own)
        config.num_assistant_tokens = NEW_TOKENS
    pipeline = genai.ContinuousBatchingPipeline(folder, scheduler, "CPU", properties)
    pipeline.generate([text], [config])


if __name__ == "__main__":
    main()
