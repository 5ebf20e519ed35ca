"""BatchNorm's running statistics: measured anew, exchanged for a while, or held still."""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ddn_lightning.optimization import evaluating

Buffers = dict[str, Tensor]  # values for some of a module's buffers, by their names
STATISTICS = ("running_mean", "running_var")


def layers_with_statistics(module: nn.Module) -> dict[str, _BatchNorm]:
    """The BatchNorm layers that follow the batches they see, by name."""
    return {
        name: layer
        for name, layer in module.named_modules()
        if isinstance(layer, _BatchNorm) and layer.track_running_stats and layer.running_mean is not None
    }


def layers_put_to_rest(module: nn.Module) -> set[str]:
    """The BatchNorm layers that a user keeps in evaluation mode while the module around them is trained."""
    return {name for name, layer in layers_with_statistics(module).items() if module.training and not layer.training}


@torch.no_grad()
def measure(
    module: nn.Module,
    forward: Callable[[Tensor], object],
    batches: Iterable[Tensor],
    leave_out: Collection[str] = (),
) -> Buffers:
    """The statistics of batches, each counted alike, as :func:`torch.optim.swa_utils.update_bn` finds them.

    BatchNorm layers are in training mode meanwhile and everything else in evaluation mode: nothing is dropped out. The
    module is left exactly as it was.

    Args:
        module: Where the layers are.
        forward: Sends a batch through them; a layer that it does not reach is not in the result.
        batches: Inputs, of two samples or more.
        leave_out: Names of layers that stay in evaluation mode.

    Example:
        >>> layer = nn.BatchNorm1d(1)
        >>> measure(layer, layer, [torch.tensor([[1.0], [3.0]]), torch.tensor([[4.0], [4.0]])])
        {'running_mean': tensor([3.]), 'running_var': tensor([1.])}
        >>> layer.running_mean, layer.num_batches_tracked
        (tensor([0.]), tensor(0))
    """
    layers = {name: layer for name, layer in layers_with_statistics(module).items() if name not in leave_out}
    own = [{name: buffer.clone() for name, buffer in layer.named_buffers()} for layer in layers.values()]
    momenta = [layer.momentum for layer in layers.values()]
    try:
        # neither changes of momentum nor of mode are worth compiling a network anew
        with evaluating(module), torch.compiler.set_stance("force_eager"):
            for layer in layers.values():
                layer.reset_running_stats()
                layer.momentum = None  # the mean of all batches
                layer.training = True
            for batch in batches:
                forward(batch)
        return {
            f"{name}.{statistic}".removeprefix("."): layer.get_buffer(statistic).clone()
            for name, layer in layers.items()
            if layer.num_batches_tracked
            for statistic in STATISTICS
        }
    finally:
        for layer, buffers, momentum in zip(layers.values(), own, momenta, strict=True):
            exchange(layer, buffers)
            layer.momentum = momentum


def exchange(module: nn.Module, buffers: Buffers) -> Buffers:
    """Copy values into a module's buffers; returns those that they had."""
    with torch.inference_mode(False), torch.no_grad():  # Lightning evaluates in inference mode, and trains on after it
        before = {name: module.get_buffer(name).clone() for name in buffers}
        for name, value in buffers.items():
            module.get_buffer(name).copy_(value)
    return before


@contextmanager
def using(module: nn.Module, buffers: Buffers) -> Iterator[None]:
    """Let a module have other values in its buffers for a while."""
    before = exchange(module, buffers)
    try:
        yield
    finally:
        exchange(module, before)


@contextmanager
def held_still(module: nn.Module) -> Iterator[None]:
    """Let forward passes in training mode leave the running statistics alone; outputs are the same."""
    layers = list(layers_with_statistics(module).values())
    for layer in layers:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer in layers:
            layer.track_running_stats = True


def even_batches(labels: Tensor, batch_size: int, class_balanced: bool = False) -> list[Tensor]:
    """Indices of all samples in batches that are alike: each has its share of every class.

    Args:
        labels: Class of each sample, on the host; two samples or more.
        batch_size: Samples in a batch at most. None is left alone: a batch of one has no variance.
        class_balanced: Whether all classes count alike. The samples of smaller ones are repeated, one after another.

    Example:
        >>> even_batches(torch.tensor([0, 1, 0, 1, 0, 0]), batch_size=4)
        [tensor([0, 4, 1]), tensor([2, 5, 3])]
        >>> even_batches(torch.tensor([0, 1, 0, 1, 0]), batch_size=8, class_balanced=True)
        [tensor([0, 2, 4, 1, 3, 1])]
    """
    indices = labels.argsort(stable=True)
    if class_balanced:
        _, counts = torch.unique(labels, return_counts=True)
        turns = torch.arange(int(counts.max()))
        indices = torch.cat([members[turns % len(members)] for members in torch.split(indices, counts.tolist())])
    number = min(-(-len(indices) // batch_size), len(indices) // 2)
    return [indices[first::number] for first in range(number)]
