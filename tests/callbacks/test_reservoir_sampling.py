from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from tiny import TinySequence, small_net
from torch import Tensor

from ddn_lightning import ER, ReplayMethod, Samples


class StoresLogits(ER):
    stores_logits = True


def test_the_memory_is_a_reservoir_of_what_was_trained_on(fit: Callable[..., ReplayMethod]) -> None:
    stream: list[Samples] = []

    class Watch(Callback):
        def on_train_batch_end(self, trainer: Trainer, method: Any, outputs: Any, batch: Samples, _: int) -> None:
            stream.append(batch)

    method = fit(lambda: ER(small_net(), num_classes=6, buffer_size=10), callbacks=[Watch()])
    assert method.memory.seen == sum(len(batch) for batch in stream) == 72
    held = method.memory[torch.arange(10)]
    shown = {
        (tuple(i.flatten().tolist()), int(y))
        for batch in stream
        for i, y in zip(batch.images, batch.labels, strict=True)
    }
    assert all((tuple(i.flatten().tolist()), int(y)) in shown for i, y in zip(held.images, held.labels, strict=True))
    assert held.images.dtype == torch.uint8
    assert torch.equal(held.tasks, held.labels // 2)  # type: ignore[arg-type]


def test_nothing_is_inserted_before_the_step_that_trains_on_it(fit: Callable[..., ReplayMethod]) -> None:
    seen_at_step = []

    class Watch(ER):
        def training_step(self, batch: Samples, batch_index: int) -> dict[str, Tensor]:
            seen_at_step.append(self.memory.seen)
            return super().training_step(batch, batch_index)

    fit(lambda: Watch(small_net(), num_classes=6), TinySequence(batch_size=12))
    assert seen_at_step == [0, 12, 24, 36, 48, 60]


def test_stored_logits_are_those_before_the_step(fit: Callable[..., ReplayMethod]) -> None:
    """With the transform switched off in the sequence, the outputs can be computed again from a copy of the weights."""
    outputs: dict[tuple[int, ...], Tensor] = {}

    class Unaugmented(TinySequence):
        padding, flip = 0, False

    class Watch(StoresLogits):
        def training_step(self, batch: Samples, batch_index: int) -> dict[str, Tensor]:
            with torch.no_grad():
                logits = self(self.sequence.transform(batch.images))
            outputs.update({tuple(i.flatten().tolist()): z for i, z in zip(batch.images, logits, strict=True)})
            return super().training_step(batch, batch_index)

    method = fit(lambda: Watch(small_net(), num_classes=6, buffer_size=10), Unaugmented(batch_size=6))
    held = method.memory[torch.arange(10)]
    assert held.logits is not None
    assert not held.logits.requires_grad
    for image, logits in zip(held.images, held.logits, strict=True):
        assert torch.allclose(outputs[tuple(image.flatten().tolist())], logits, atol=1e-6)
