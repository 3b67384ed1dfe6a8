"""Learning from a teacher's answers beside the true ones.

Hinton, Vinyals, Dean 2015, "Distilling the Knowledge in a Neural Network": the student's softmax at
a temperature follows the teacher's at the same one. A teacher is an exported version, so no code of
its training is needed: the logarithm of its probabilities is its logits but for a constant, which
softmax does not see. For a number the student follows the teacher's prediction.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from millrace.models.families.objective import Objective, Regression
from millrace.models.inference.onnx_session import OnnxSession

SMALLEST = 1e-7
"""Probabilities below are as good as this: float32 rounds them anyway."""


@dataclass(frozen=True)
class Teacher:
    """A version to learn from, as it travels to the workers.

    Attributes:
        name: model and version, for people.
        model: bytes of its ONNX file.
        temperature: of both softmaxes; the higher, the more the wrong classes count.
        weight: share of the teacher in the loss, 0 to 1.
    """

    name: str
    model: bytes = field(repr=False)
    temperature: float
    weight: float


class Tutor:
    """A teacher that is ready to answer, in one worker.

    Args:
        teacher: whom to learn from.
        objective: what is learnt.
    """

    def __init__(self, teacher: Teacher, objective: Objective) -> None:
        self._teacher, self._objective = teacher, objective
        self._session = OnnxSession(teacher.model)

    def blended(self, loss: Tensor, features: Tensor, logits: Tensor) -> Tensor:
        """Return the loss against the target and that against the teacher, weighted.

        Args:
            loss: the mean loss against the target, a scalar.
            features: `[rows, width]`, as the graph reads them.
            logits: float32 `[rows, outputs]`, the student's.
        """
        answers = torch.from_numpy(self._session.answer(features.cpu().numpy()))
        soft = self._distance(logits, answers.to(logits.device))
        weight = self._teacher.weight
        return (1 - weight) * loss + weight * soft

    def _distance(self, logits: Tensor, answers: Tensor) -> Tensor:
        if isinstance(self._objective, Regression):
            return self._objective.loss(logits, answers[:, 0])
        temperature = self._teacher.temperature
        taught = torch.softmax(answers.clamp(min=SMALLEST).log() / temperature, dim=1)
        learnt = torch.log_softmax(logits / temperature, dim=1)
        # Gradients of soft targets shrink by the square of the temperature.
        return functional.kl_div(learnt, taught, reduction="batchmean") * temperature**2
