"""Distillation: a student model learns from the targets and from a teacher model's predictions.

Hinton, Vinyals, Dean 2015, "Distilling the Knowledge in a Neural Network": the student's softmax at
a temperature is trained towards the teacher's softmax at the same temperature. The teacher is a
registered ONNX file, so its training code is not needed. Its logits are the logarithm of its
probabilities plus a constant, which does not change the softmax. In regression the student is
trained towards the teacher's prediction.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from millrace.models.families.objective import Objective, Regression
from millrace.models.inference.onnx_session import OnnxSession

SMALLEST = 1e-7
"""Lower bound of the teacher's probabilities before the logarithm: smaller ones are noise in
float32."""


@dataclass(frozen=True)
class Teacher:
    """A registered version to learn from, as it is sent to the workers.

    Attributes:
        name: model and version, for messages.
        model: bytes of the ONNX file.
        temperature: temperature of both softmaxes; a higher one gives wrong classes more weight.
        weight: share of the teacher in the loss, 0 to 1.
    """

    name: str
    model: bytes = field(repr=False)
    temperature: float
    weight: float


class Tutor:
    """A teacher loaded into ONNX Runtime in one worker.

    Args:
        teacher: the teacher.
        objective: the student's objective.
    """

    def __init__(self, teacher: Teacher, objective: Objective) -> None:
        self._teacher, self._objective = teacher, objective
        self._session = OnnxSession(teacher.model)

    def blended(self, loss: Tensor, features: Tensor, logits: Tensor) -> Tensor:
        """Return the weighted sum of the loss against the target and the loss against the teacher.

        Args:
            loss: the mean loss against the target, a scalar.
            features: `[rows, width]`, the input of the student and the teacher.
            logits: float32 `[rows, outputs]`, the student's logits.
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
        # Gradients of soft targets shrink by the squared temperature, so the loss is scaled back.
        return functional.kl_div(learnt, taught, reduction="batchmean") * temperature**2
