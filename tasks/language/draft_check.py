"""Step: a look at what is to draft for a language model, before time is spent on training it."""

from typing import TYPE_CHECKING

from models.pipeline import Pipeline
from models.places import Places
from models.registry import registry_of
from tasks.language.draft import require_draft
from tasks.retry import step

if TYPE_CHECKING:
    from models.language.token_table import TokenTable


@step(timeout_seconds=3600)
def check_draft(pipeline: Pipeline, places: Places, tokens: "TokenTable") -> None:
    """See whether the draft, where a pipeline names one, has the model's own tokens.

    Raises:
        InputError: it is not there, has other files than were registered, or does not fit.
        TransientError: MLflow cannot be reached.
    """
    require_draft(pipeline, registry_of(places), tokens.tokenizer().files["tokenizer.json"])
