"""Which sequences every step learns from, and where a run stands among them.

The order follows from the seed and the epoch alone. A step takes the next `global_batch` sequences
of it, whoever computes them, so a run goes on with another number of workers where it stopped: no
sequence is seen twice in an epoch, and none is left out.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from millrace.models.common.arrays import Array


@dataclass(frozen=True)
class Place:
    """Where a run stands.

    Attributes:
        epoch: epochs that are done.
        sequences: sequences of the running epoch that are done.
        step: steps of the optimizer that are done.
    """

    epoch: int = 0
    sequences: int = 0
    step: int = 0


@dataclass(frozen=True)
class Step:
    """One step of the optimizer.

    Attributes:
        positions: of the sequences it learns from, int64 `[at most global_batch]`.
        progress: share of the run that is done half-way through it, above 0 and below 1.
        after: where the run stands then.
        ends_epoch: whether its epoch ends with it.
        ends_run: whether it is the last.
    """

    positions: Array
    progress: float
    after: Place
    ends_epoch: bool
    ends_run: bool


@dataclass(frozen=True)
class Course:
    """All steps of a run.

    Attributes:
        sequences: of the train split.
        global_batch: sequences to a step, over all workers and micro-steps.
        epochs: passes at most.
        max_steps: steps at most; None for as many as the epochs have.
        seed: of the order.
    """

    sequences: int
    global_batch: int
    epochs: int
    max_steps: int | None
    seed: int

    @property
    def steps(self) -> int:
        """Steps from beginning to end; the last of an epoch may have fewer sequences."""
        whole = self.epochs * self._steps_per_epoch
        return whole if self.max_steps is None else min(whole, self.max_steps)

    def remaining(self, place: Place) -> Iterator[Step]:
        """Yield the steps after a place."""
        total = self._seen(self._end())
        while place.epoch < self.epochs and not self._reached(place.step):
            order = epoch_order(self.sequences, self.seed, place.epoch)
            positions = order[place.sequences : place.sequences + self.global_batch]
            middle = self._seen(place) + len(positions) / 2
            after, ends_epoch = self._after(place, len(positions))
            ends_run = after.epoch >= self.epochs or self._reached(after.step)
            progress = min(middle / total, math.nextafter(1.0, 0.0))
            yield Step(positions, progress, after, ends_epoch, ends_run)
            place = after

    @property
    def _steps_per_epoch(self) -> int:
        return -(-self.sequences // self.global_batch)

    def _reached(self, step: int) -> bool:
        return self.max_steps is not None and step >= self.max_steps

    def _after(self, place: Place, taken: int) -> tuple[Place, bool]:
        done = place.sequences + taken
        if done < self.sequences:
            return Place(place.epoch, done, place.step + 1), False
        return Place(place.epoch + 1, 0, place.step + 1), True

    def _end(self) -> Place:
        epochs, steps = divmod(self.steps, self._steps_per_epoch)
        return Place(epochs, steps * self.global_batch, self.steps)

    def _seen(self, place: Place) -> int:
        return place.epoch * self.sequences + place.sequences


def epoch_order(sequences: int, seed: int, epoch: int) -> Array:
    """Return the positions of all sequences in an epoch's order, int64 `[sequences]`."""
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, epoch))))
    return generator.permutation(sequences)


def share_of(
    positions: Array, batch_size: int, micro_steps: int, rank: int, world_size: int
) -> list[Array]:
    """Return what one worker computes of a step, one array for each micro-step.

    One worker with two micro-steps takes what two workers with one take between them. Where the
    sequences do not suffice, the last arrays are empty: every worker makes every micro-step, as
    the collectives of the others wait for it.

    Args:
        positions: of the step's sequences.
        batch_size: sequences per worker and micro-step.
        micro_steps: micro-steps of a step.
        rank: of the worker.
        world_size: workers with sequences of their own.
    """
    width = batch_size * world_size
    needed = min(micro_steps, max(1, -(-len(positions) // width)))
    starts = [step * width + rank * batch_size for step in range(needed)]
    return [positions[start : start + batch_size] for start in starts]
