"""Whether a network leaves parameters out of a step, which DistributedDataParallel must be told."""

import copy

import torch

from millrace.models.common.arrays import Array
from millrace.models.families.network import Network


def leaves_parameters_unused(network: Network, example: Array) -> bool:
    """Return whether some parameter gets no gradient from a forward and backward pass.

    Telling DDP always (`find_unused_parameters=True`) would be safe too, but it then walks the
    graph in every step: a tenth of the time of a small network's epoch. A copy of the network is
    tried, and the random state is put back, so that trying changes nothing. Of one that cannot be
    tried it is taken to be so.

    Args:
        network: on the CPU.
        example: two rows as it takes them.
    """
    try:
        trial = copy.deepcopy(network)
        trial.train()
        with torch.random.fork_rng(devices=[]):
            trial(torch.from_numpy(example)).sum().backward()
    except Exception:  # whatever a module of the user's raises: training itself will tell
        return True
    parameters = [each for each in trial.parameters() if each.requires_grad]
    return any(each.grad is None for each in parameters)
