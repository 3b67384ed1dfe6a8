"""Step: a look at what is to draft for a language model, before time is spent on training it."""

from typing import TYPE_CHECKING

from millrace.models.pipeline import Pipeline
from millrace.models.places import Places
from millrace.models.registry import registry_of
from millrace.tasks.language.draft import require_draft
from millrace.tasks.retry import step

if TYPE_CHECKING:
    from millrace.models.language.token_table import TokenTable


@step(timeout_seconds=3600)
def check_draft(pipeline: Pipeline, places: Places, tokens: "TokenTable") -> None:
    """See whether the draft, where a pipeline names one, has the model's own tokens.

    Raises:
        InputError: it is not there, has other files than were registered, or does not fit.
        TransientError: MLflow cannot be reached.
    """
    require_draft(pipeline, registry_of(places), tokens.tokenizer().files["tokenizer.json"])
