"""Copies between the host and a device."""

import torch
from torch import Tensor

BLOCKING = ("cpu", "mps")  # as Lightning has it: on the host numbers must have arrived, and on a Mac torch has a race


def moved(tensor: Tensor, device: torch.device | str) -> Tensor:
    """The tensor on a device, where nobody waits for it; itself if it is there already.

    A plain ``tensor.to(device)`` waits until the device is done with everything that it was given before. With
    ``non_blocking=True`` it does not, but on the way to the host that would hand out numbers not yet there.

    >>> moved(torch.tensor([1, 2]), "cpu")
    tensor([1, 2])
    """
    return tensor.to(device, non_blocking=torch.device(device).type not in BLOCKING)
