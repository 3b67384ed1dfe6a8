"""What a pipeline file says of a language model's training."""

from millrace.models.config.training_spec import TrainingSpec
from millrace.tasks.kinds.language.language_train import recipe_of


def test_reports_come_as_often_as_the_file_says() -> None:
    assert recipe_of(TrainingSpec(log_steps=3)).log_steps == 3
    assert recipe_of(TrainingSpec()).log_steps == 10
