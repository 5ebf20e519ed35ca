"""A memory whose size is given in bytes: as many samples as fit with everything else that a method keeps."""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ddn_lightning.callbacks.stored_bytes import other_bytes
from ddn_lightning.errors import ConfigurationError, check_positive
from ddn_lightning.networks.frozen_features import stored_form
from ddn_lightning.samples import Samples

DEFAULT_SIZE = 200  # samples


def initial_size(method: Any, buffer_size: int | None, buffer_bytes: int | None) -> int:
    """The size of a new method's memory; with ``buffer_bytes`` that of one sample for each class until a fit."""
    if buffer_size is not None:
        check_positive(buffer_size=buffer_size)
    if buffer_bytes is None:
        return DEFAULT_SIZE if buffer_size is None else buffer_size
    check_positive(buffer_bytes=buffer_bytes)
    if given := buffer_size or method.memory.buffer_size:
        raise ConfigurationError(
            f"buffer_bytes must be given instead of buffer_size, got {buffer_bytes} bytes and {given} samples: leave "
            "out one of them, as by --model.buffer_size null"
        )
    return int(method.num_classes)


def resolve_bytes(method: Any) -> None:
    """Turn ``buffer_bytes``, if given, into the method's ``buffer_size``, as soon as the data is known."""
    if (budget := method.constructor_arguments.get("buffer_bytes")) is not None:
        set_size(method, fitted_size(method, budget))


def set_size(method: Any, buffer_size: int) -> None:
    """Set the size of an empty memory, and record it in place of the bytes."""
    method.resize(buffer_size)
    method.constructor_arguments |= {"buffer_size": buffer_size, "buffer_bytes": None}


def fitted_size(method: Any, budget: int) -> int:
    """The largest ``buffer_size`` with which a method, once its memory is full, stores at most ``budget`` bytes."""
    if method.stored_samples is None:
        raise ConfigurationError(f"buffer_bytes has no effect: {type(method).__name__} keeps no samples")
    form = stored_form(method.backbone, method.sequence.image_shape)
    convert = method.trainer.precision_plugin.convert_input

    def bytes_of(buffer_size: int) -> int:
        method.resize(buffer_size)
        return full_bytes(method, form, convert)

    largest = budget // form.images.nbytes
    size = bisect_right(range(1, largest + 1), budget, key=bytes_of)
    if size == 0:
        sample = bytes_of(1) - (others := other_bytes(method))
        raise ConfigurationError(
            f"buffer_bytes must have room for one sample of {sample} bytes in addition to the {others} that "
            f"{type(method).__name__} keeps, got {budget}"
        )
    return size


def full_bytes(method: Any, form: Samples, convert: Callable[[Tensor], Tensor] | None = None) -> int:
    """Bytes of the full memory and of all that a method keeps except the network that predicts.

    Args:
        method: The method.
        form: One sample as the memory stores it, without logits.
        convert: Changes logits to the precision of training, if it is not single.
    """
    if method.stores_logits:
        logits = torch.zeros(1, method.num_classes)
        form = replace(form, logits=logits if convert is None else convert(logits))
    samples = 0 if method.stored_samples is None else method.stored_samples.full_bytes(form)
    return int(samples) + other_bytes(method)
