"""Which of the models that are ready are language models, and which version answers."""

from tritonclient.grpc import model_config_pb2 as pb

from millrace.models.config.language_spec import GenerationSpec
from millrace.serving.openai_api.model_catalog import is_language_model, select_live_versions
from millrace.serving.triton.language.language_config import openvino_config
from millrace.serving.triton.model_config import specific


def test_the_highest_version_that_is_ready_answers() -> None:
    ready = [("lm", 9), ("lm", 10), ("other", 2), ("lm", 2)]
    assert select_live_versions(ready) == {"lm": 10, "other": 2}


def test_models_that_are_only_tried_are_not_listed() -> None:
    assert select_live_versions([("lm", 1), ("lm.trial-4", 4)]) == {"lm": 1}


def test_a_language_model_takes_a_text_and_streams_one() -> None:
    config = openvino_config("lm", GenerationSpec(), version_policy=specific([1]))
    assert is_language_model(config)
    config.model_transaction_policy.decoupled = False
    assert not is_language_model(config)
    assert not is_language_model(pb.ModelConfig(name="digits", input=[pb.ModelInput(name="x")]))
