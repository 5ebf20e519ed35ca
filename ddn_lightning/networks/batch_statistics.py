"""BatchNorm statistics: measure them on given batches, swap them temporarily, or freeze them."""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ddn_lightning.networks.gradients import evaluating

Buffers = dict[str, Tensor]  # values for some of a module's buffers, by their names
STATISTICS = ("running_mean", "running_var")


def layers_with_statistics(module: nn.Module) -> dict[str, _BatchNorm]:
    """The BatchNorm layers with running statistics, by name."""
    return {
        name: layer
        for name, layer in module.named_modules()
        if isinstance(layer, _BatchNorm) and layer.track_running_stats and layer.running_mean is not None
    }


def frozen_layers(module: nn.Module) -> set[str]:
    """Names of the BatchNorm layers that the user keeps in evaluation mode while the module is in training mode."""
    return {name for name, layer in layers_with_statistics(module).items() if module.training and not layer.training}


def is_frozen(module: nn.Module) -> bool:
    """Whether a module has parameters, and none of them is trained."""
    required = [parameter.requires_grad for parameter in module.parameters()]
    return bool(required) and not any(required)


def hold_statistics(module: nn.Module) -> None:
    """Switch BatchNorm to evaluation mode: it normalises by its statistics, which then do not move."""
    for layer in layers_with_statistics(module).values():
        layer.eval()


@torch.no_grad()
def measure(
    module: nn.Module, forward: Callable[[Tensor], object], batches: Iterable[Tensor], exclude: Collection[str] = ()
) -> Buffers:
    """Statistics averaged over batches, as by :func:`torch.optim.swa_utils.update_bn`; the module is left unchanged.

    Only BatchNorm layers are in training mode: dropout is off.

    Args:
        module: The module with the BatchNorm layers.
        forward: Forwards a batch; layers that it does not reach are not in the result.
        batches: Inputs of at least two samples each.
        exclude: Names of layers that stay in evaluation mode.

    Example:
        >>> layer = nn.BatchNorm1d(1)
        >>> measure(layer, layer, [torch.tensor([[1.0], [3.0]]), torch.tensor([[4.0], [4.0]])])
        {'running_mean': tensor([3.]), 'running_var': tensor([1.])}
        >>> layer.running_mean, layer.num_batches_tracked
        (tensor([0.]), tensor(0))
    """
    layers = {name: layer for name, layer in layers_with_statistics(module).items() if name not in exclude}
    own = [{name: buffer.clone() for name, buffer in layer.named_buffers()} for layer in layers.values()]
    momenta = [layer.momentum for layer in layers.values()]
    try:
        # eager: a compiled network would recompile for the changed modes and momenta
        with evaluating(module), torch.compiler.set_stance("force_eager"):
            for layer in layers.values():
                layer.reset_running_stats()
                layer.momentum = None  # cumulative average over the batches
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
            swap_buffers(layer, buffers)
            layer.momentum = momentum


def swap_buffers(module: nn.Module, buffers: Buffers) -> Buffers:
    """Copy values into a module's buffers; returns the previous values."""
    with torch.inference_mode(False), torch.no_grad():  # inference tensors could not be trained with afterwards
        before = {name: module.get_buffer(name).clone() for name in buffers}
        for name, value in buffers.items():
            module.get_buffer(name).copy_(value)
    return before


@contextmanager
def swapped_buffers(module: nn.Module, buffers: Buffers) -> Iterator[None]:
    """Swap buffer values within the context."""
    before = swap_buffers(module, buffers)
    try:
        yield
    finally:
        swap_buffers(module, before)


@contextmanager
def frozen_statistics(module: nn.Module) -> Iterator[None]:
    """Keep forward passes in training mode from updating the running statistics; outputs do not change."""
    layers = list(layers_with_statistics(module).values())
    for layer in layers:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer in layers:
            layer.track_running_stats = True


def stratified_batches(labels: Tensor, batch_size: int, class_balanced: bool = False) -> list[Tensor]:
    """Indices of all samples in batches with equal class proportions.

    Args:
        labels: Class of each sample, on the host; at least two samples.
        batch_size: Maximum batch size. No batch has a single sample, which would have no variance.
        class_balanced: Whether to repeat the samples of smaller classes until all classes are equally large.

    Example:
        >>> stratified_batches(torch.tensor([0, 1, 0, 1, 0, 0]), batch_size=4)
        [tensor([0, 4, 1]), tensor([2, 5, 3])]
        >>> stratified_batches(torch.tensor([0, 1, 0, 1, 0]), batch_size=8, class_balanced=True)
        [tensor([0, 2, 4, 1, 3, 1])]
    """
    indices = labels.argsort(stable=True)
    if class_balanced:
        _, counts = torch.unique(labels, return_counts=True)
        turns = torch.arange(int(counts.max()))
        indices = torch.cat([members[turns % len(members)] for members in torch.split(indices, counts.tolist())])
    number = min(-(-len(indices) // batch_size), len(indices) // 2)
    return [indices[first::number] for first in range(number)]
