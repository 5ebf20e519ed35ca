from typing import Any

from lightning.pytorch import Callback, Trainer
from tiny import Fit, TinySequence, small_net

from ddn_lightning import Joint


def test_joint_sees_every_sample_as_often_as_the_sequence_does_but_mixed(fit: Fit) -> None:
    epochs: dict[int, list[tuple[int, int]]] = {}

    class Watch(Callback):
        def on_train_batch_end(self, trainer: Trainer, method: Any, outputs: Any, batch: Any, _: int) -> None:
            seen = epochs.setdefault(trainer.current_epoch, [])
            seen.extend((int(i.sum()), int(y)) for i, y in zip(batch.images, batch.labels, strict=True))

    method = fit(lambda: Joint(small_net(), num_classes=6), TinySequence(epochs_per_task=2), callbacks=[Watch()])
    everything = sorted(
        (int(i.sum()), int(y))
        for i, y in zip(method.sequence.train_set.images, method.sequence.train_set.labels, strict=True)
    )
    for first in (0, 1):  # the same pass over all tasks
        assert sorted(epochs[first] + epochs[first + 2] + epochs[first + 4]) == everything
    assert all(len({label for _, label in seen}) >= 5 for seen in epochs.values())
    assert sorted(epochs[0]) != sorted(epochs[1])
