"""Step: a look at what is to draft for a language model, before time is spent on training it."""

from typing import TYPE_CHECKING

from millrace.models.common.installation import Places
from millrace.models.config.pipeline import Pipeline
from millrace.models.registry.mlflow_registry import registry_of
from millrace.tasks.kinds.language.draft_model import require_draft
from millrace.tasks.retry import step

if TYPE_CHECKING:
    from millrace.models.language.corpus.token_table import TokenTable


@step(timeout_seconds=3600)
def check_draft(pipeline: Pipeline, places: Places, tokens: "TokenTable") -> None:
    """See whether the draft, where a pipeline names one, has the model's own tokens.

    Raises:
        InputError: it is not there, has other files than were registered, or does not fit.
        TransientError: MLflow cannot be reached.
    """
    require_draft(pipeline, registry_of(places), tokens.tokenizer().files["tokenizer.json"])
