from ray.train.torch import TorchTrainer

from millrace.models.training.lean_trainer import UNUSED, lean


def test_only_the_unused_actors_are_left_out() -> None:
    usual = TorchTrainer(lambda: None)._create_default_callbacks()
    left = lean(TorchTrainer)(lambda: None)._create_default_callbacks()
    assert {type(each) for each in usual} - {type(each) for each in left} == set(UNUSED)
    assert len(usual) - len(left) == len(UNUSED)
