"""The sequences of every training step, and the position of a run among its steps.

The order depends on the seed and the epoch only. A step trains on the next `global_batch` sequences
in this order, whichever worker computes them. So a run can resume with another number of workers:
no sequence is repeated or left out in an epoch.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from millrace.models.common.arrays import Array


@dataclass(frozen=True)
class Position:
    """The position of a run.

    Attributes:
        epoch: number of finished epochs.
        sequences: number of finished sequences in the current epoch.
        step: number of finished optimizer steps.
    """

    epoch: int = 0
    sequences: int = 0
    step: int = 0


@dataclass(frozen=True)
class Step:
    """One step of the optimizer.

    Attributes:
        positions: positions of its sequences in the split, int64 `[at most global_batch]`.
        progress: share of the run that is done in the middle of the step, above 0 and below 1.
        after: position of the run after the step.
        ends_epoch: whether the step is the last of its epoch.
        ends_run: whether the step is the last of the run.
    """

    positions: Array
    progress: float
    after: Position
    ends_epoch: bool
    ends_run: bool


@dataclass(frozen=True)
class Course:
    """All steps of a run.

    Attributes:
        sequences: number of sequences in the train split.
        global_batch: sequences per step, over all workers and micro-steps.
        epochs: largest number of passes over the train split.
        max_steps: largest number of steps; None for no limit but the epochs.
        seed: seed of the order.
    """

    sequences: int
    global_batch: int
    epochs: int
    max_steps: int | None
    seed: int

    @property
    def steps(self) -> int:
        """Number of steps of the run; the last step of an epoch may have fewer sequences."""
        whole = self.epochs * self._steps_per_epoch
        return whole if self.max_steps is None else min(whole, self.max_steps)

    def remaining(self, position: Position) -> Iterator[Step]:
        """Yield the steps after a position of the run."""
        total = self._seen(self._end())
        while position.epoch < self.epochs and not self._reached(position.step):
            order = epoch_order(self.sequences, self.seed, position.epoch)
            positions = order[position.sequences : position.sequences + self.global_batch]
            middle = self._seen(position) + len(positions) / 2
            after, ends_epoch = self._after(position, len(positions))
            ends_run = after.epoch >= self.epochs or self._reached(after.step)
            progress = min(middle / total, math.nextafter(1.0, 0.0))
            yield Step(positions, progress, after, ends_epoch, ends_run)
            position = after

    @property
    def _steps_per_epoch(self) -> int:
        return -(-self.sequences // self.global_batch)

    def _reached(self, step: int) -> bool:
        return self.max_steps is not None and step >= self.max_steps

    def _after(self, position: Position, taken: int) -> tuple[Position, bool]:
        done = position.sequences + taken
        if done < self.sequences:
            return Position(position.epoch, done, position.step + 1), False
        return Position(position.epoch + 1, 0, position.step + 1), True

    def _end(self) -> Position:
        epochs, steps = divmod(self.steps, self._steps_per_epoch)
        return Position(epochs, steps * self.global_batch, self.steps)

    def _seen(self, position: Position) -> int:
        return position.epoch * self.sequences + position.sequences


def epoch_order(sequences: int, seed: int, epoch: int) -> Array:
    """Return the positions of all sequences in the order of an epoch, int64 `[sequences]`."""
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, epoch))))
    return generator.permutation(sequences)


def share_of(
    positions: Array, batch_size: int, micro_steps: int, rank: int, world_size: int
) -> list[Array]:
    """Return the sequences of a step that one worker computes, one array per micro-step.

    One worker with two micro-steps computes the same sequences as two workers with one each. If
    there are too few sequences, the last arrays are empty. Every worker must still take part in
    every micro-step, because the collectives of a micro-step wait for all workers.

    Args:
        positions: positions of the step's sequences.
        batch_size: sequences per worker and micro-step.
        micro_steps: micro-steps per step.
        rank: rank of the worker.
        world_size: number of workers that train on different sequences.
    """
    width = batch_size * world_size
    needed = min(micro_steps, max(1, -(-len(positions) // width)))
    starts = [step * width + rank * batch_size for step in range(needed)]
    return [positions[start : start + batch_size] for start in starts]
