"""GDumb: keep a balanced memory, and train on nothing else."""

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from ddn_lightning.callbacks.task_progress_bar import track
from ddn_lightning.core.growth import grow_head
from ddn_lightning.core.replay_method import ReplayMethod
from ddn_lightning.errors import ConfigurationError, check_positive
from ddn_lightning.learner import Facts
from ddn_lightning.memory.class_balanced_reservoir import ClassBalancedReservoir
from ddn_lightning.memory.memory import Memory
from ddn_lightning.notes import note
from ddn_lightning.optimization import descend
from ddn_lightning.replay_loss import ReplayLoss
from ddn_lightning.samples import Samples, cross_entropy

TRAINING = "training on the memory"


class GDumb(ReplayMethod):
    """GDumb (Prabhu et al., ECCV 2020, https://doi.org/10.1007/978-3-030-58536-5_31).

    Unlike Experience Replay it never trains on the stream, which only fills a memory with equally many samples of each
    class. At each task's end the network starts again from its initial weights and is trained on the memory alone, as
    it would be before any evaluation; within a task it is the network of the previous one. Its accuracy is what the
    memory is worth without continual learning. The paper's CutMix is left out, and the last epoch counts, where the
    authors' code reports the best one on the test images.

    Within a class, the memory is a uniform sample; the original keeps the first ones and removes at random. Needs no
    task boundaries but those before an evaluation, and stores the initial network.

    Args:
        memory: The memory; by default a :class:`ClassBalancedReservoir`.
        memory_epochs: Epochs over the memory at each task's end. A power of 2 ends with the lowest learning rate.
            Published: 256.
        **kwargs: Arguments of :class:`ReplayMethod`. ``lr`` is the highest learning rate on the memory, which follows
            :func:`annealed`, and ``replay_batch_size`` the batch size. The authors have a ``gradient_clip_val`` of 10.
            ``replay_steps``, ``lr_milestones`` and ``lr_scheduler`` have no effect; ``configure_optimizers`` cannot be
            overridden.
    """

    facts = Facts(
        key="gdumb",
        title="GDumb",
        reference="[Prabhu et al. 2020](https://doi.org/10.1007/978-3-030-58536-5_31)",
        stores="the initial network",
        cost="no gradient at all; at a task's end 256 epochs on the memory",
    )

    rehearses_labels = False
    cannot_average = "it trains a new network at a task's end"

    def __init__(self, *args: Any, memory: Memory | None = None, memory_epochs: int = 256, **kwargs: Any) -> None:
        balanced = ClassBalancedReservoir() if memory is None else memory
        super().__init__(*args, memory=balanced, **kwargs)  # type: ignore[misc]  # positional ones end before it
        check_positive(memory_epochs=memory_epochs)
        self.memory_epochs = memory_epochs
        self.initial_network = copy.deepcopy(self.network).requires_grad_(False)

    def on_fit_start(self) -> None:
        """Refuse or note what training on the memory does not use."""
        super().on_fit_start()
        if self.overrides_optimizers:
            raise ConfigurationError(
                "GDumb trains a new network on its memory, with optimizer=..., not with an overridden "
                "configure_optimizers"
            )
        given = {"replay_steps": self.replay_steps != 1, "lr_milestones": bool(self.optimization.lr_milestones)}
        given["lr_scheduler"] = self.optimization.build_scheduler is not None
        if unused := [name for name, is_given in given.items() if is_given]:
            note(f"GDumb has epochs and a schedule of its own; without effect: {', '.join(unused)}")

    def retrieve(self, current: Samples) -> list[Samples]:
        """Nothing is replayed with the stream."""
        return []

    def current_loss(self, current: Samples) -> ReplayLoss:
        """No loss: the stream only fills the memory."""
        logits = torch.zeros(len(current), self.num_classes, device=self.device)
        return ReplayLoss(logits.sum(), logits)

    def loss(self, current: Samples, *memory: Samples) -> ReplayLoss:
        """No loss."""
        return self.current_loss(current)

    def gradients(self, loss: ReplayLoss, parameters: Sequence[Tensor]) -> tuple[Tensor, list[Tensor | None]]:
        """No gradients, so that the optimizer's step only counts the batch."""
        return loss.other, [None] * len(parameters)

    def grow(self, num_classes: int) -> None:
        """Change the number of outputs, also of the initial network."""
        super().grow(num_classes)
        grow_head(self.initial_network.get_submodule("head"), self)

    def begin_task(self) -> None:
        """Keep the initial weights."""
        if self.task == 0:
            self.initial_network.load_state_dict(self.network.state_dict())

    def end_task(self) -> None:
        """Train the initial network on the memory."""
        self.network.load_state_dict(self.initial_network.state_dict())
        generator, slots = self.streams[TRAINING], self.memory.slots
        parameters = [p for p in self.network.parameters() if p.requires_grad]
        optimizer = self.optimization.build(parameters)
        schedule = LambdaLR(optimizer, annealed)
        for _ in track(self.trainer, self.memory_epochs if len(slots) else 0, TRAINING):
            order = slots[torch.randperm(len(slots), generator=generator)]
            for batch in order.tensor_split(-(-len(slots) // self.replay_batch_size)):  # none of them much smaller
                samples = self.stored(batch, generator)
                with self.trainer.precision_plugin.train_step_context():
                    value = cross_entropy(self.logits_of(samples), samples)
                limit = self.optimization.gradient_clip_val, self.optimization.gradient_clip_algorithm
                loss = descend(value, optimizer, *limit)
                self.note_loss(loss, "the loss on the memory")
            schedule.step()


def annealed(epoch: int) -> float:
    """Factor of the learning rate: 0.1 in the first epoch, then cosines from 1 to 0.01 over 1, 2, 4, 8, ... epochs.

    >>> [round(annealed(epoch), 3) for epoch in range(6)]
    [0.1, 1.0, 1.0, 0.505, 1.0, 0.855]
    """
    if epoch == 0:
        return 0.1
    length = 2 ** (epoch.bit_length() - 1)
    return 0.01 + 0.99 * (1 + math.cos(math.pi * (epoch - length) / length)) / 2
