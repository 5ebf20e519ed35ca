"""Joint training: all classes at once, the upper bound."""

import torch

from ddn_lightning.data.task_sequence import TaskSequence
from ddn_lightning.distill.learner import Facts
from ddn_lightning.methods.finetune import Finetune
from ddn_lightning.random_streams import generator_for
from ddn_lightning.samples import Samples, SelectedSamples


class Joint(Finetune):
    """Trains on all tasks mixed, with the same number of steps and passes over each sample as the sequence.

    Instead of the data of task ``t`` it gets the ``t``-th part of the shuffled data: only the order differs from
    fine-tuning. Its final accuracy is the upper bound; its forgetting has no meaning.

    Args:
        **kwargs: Arguments of :class:`ReplayMethod`; those about memory have no effect.
    """

    facts = Facts("joint", "joint training", "upper bound", "no memory", "no replayed batch")

    cannot_grow = "it learns all tasks at once, from the first one on"

    def stream(self, sequence: TaskSequence, epoch: int) -> Samples:
        """A part of all data, another one in each task."""
        task, pass_number = divmod(epoch, sequence.epochs_per_task)
        generator = generator_for(self.streams.seed, f"parts of pass {pass_number}")
        samples = sequence.served(train=True)
        order = torch.randperm(len(samples), generator=generator)
        return SelectedSamples.of(samples, order.tensor_split(sequence.num_tasks)[task])
