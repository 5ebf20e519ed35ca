"""A learner that goes on with further tasks and classes after its sequence has ended."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import nn

from ddn_lightning.checkpoint.growth import overlaid, resized
from ddn_lightning.checkpoint.record import checked_progress
from ddn_lightning.checkpoint.weights import check_weights
from ddn_lightning.core.portable_learner import PortableLearner
from ddn_lightning.data.grown_sequence import GrownSequence
from ddn_lightning.errors import ConfigurationError
from ddn_lightning.lightning_internals import resume_from_file
from ddn_lightning.metrics.accuracy_matrix import MATRICES
from ddn_lightning.notes import note
from ddn_lightning.random_streams import generator_for


class GrowingLearner(PortableLearner, ABC):
    """Goes on from the checkpoint of a finished run when its data is a :class:`GrownSequence` that follows it.

    Where all outputs exist already, because the new tasks have no new classes or the first run had outputs to spare
    (``num_classes`` above that of its data), two runs equal one run over all tasks bit for bit. Otherwise each part
    that has a size for each class extends itself in :meth:`grow`.
    """

    cannot_grow: ClassVar[str] = ""  # why the method cannot go on after its sequence, if it cannot

    @abstractmethod
    def build_head(self, feature_dim: int) -> nn.Module:
        """The layer from features to one logit per class."""

    def goes_on(self) -> bool:
        """Whether a loaded method goes on with a sequence that follows; then its checkpoint is restored as a whole."""
        if not self.tasks_seen:
            return False
        if self.loaded_from is None or not isinstance(self.sequence, GrownSequence):
            raise ConfigurationError(
                f"this {type(self).__name__} has been trained already, up to task {self.tasks_seen}, and a fit begins "
                "with the first task: make a new method, pass ckpt_path to resume, or load the method and give it a "
                "sequence that continues, first.followed_by(more)"
            )
        resume_from_file(self.trainer, self.loaded_from)
        return True

    def grow(self, num_classes: int) -> None:
        """Change the number of outputs; those of known classes stay as they are.

        A method with parameters or buffers of its own for each class extends this for them.
        """
        self.num_classes = self.constructor_arguments["num_classes"] = num_classes
        self.grow_head(self.head)
        self.is_seen_class = resized(self.is_seen_class, (num_classes,))

    def grow_head(self, head: nn.Module) -> None:
        """Change the number of outputs of a head; new ones start as in a new head, by the seed of the run."""
        generator = generator_for(self.streams.seed, f"head of {self.num_classes} classes")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(generator.initial_seed())
            fresh = self.build_head(self.backbone.feature_dim).state_dict()
        for name, values in [*head.named_parameters(), *head.named_buffers()]:
            values.data = overlaid(values.detach(), fresh[name].to(values))  # in place, to keep the head's hooks
        if isinstance(head, nn.Linear):
            head.out_features = self.num_classes

    def grow_from(self, checkpoint: dict[str, Any], num_classes: int, num_tasks: int) -> None:
        """Replace the weights in the checkpoint of a finished run by those for all tasks to come.

        Args:
            checkpoint: The checkpoint.
            num_classes: Its number of classes.
            num_tasks: Its number of tasks.
        """
        if self.cannot_grow:
            raise ConfigurationError(f"{type(self).__name__} cannot go on with further tasks: {self.cannot_grow}")
        _, finished, _ = checked_progress(checkpoint["state_dict"].get("_extra_state"))
        if finished < num_tasks:
            raise ConfigurationError(
                f"only a finished run can go on with further tasks, but this checkpoint has learned {finished} of its "
                f"{num_tasks} tasks: resume the run with its own data first"
            )
        outputs = max(self.num_classes, self.sequence.num_classes)
        self.new_outputs = outputs - num_classes
        self._resize(num_classes, num_tasks)
        check_weights(checkpoint["state_dict"], self.state_dict(), is_strict=self.strict_loading)
        self.load_state_dict(checkpoint["state_dict"], strict=self.strict_loading)
        self._resize(outputs, self.sequence.num_tasks)
        self.test_accuracy = {}  # opened anew after the last of the tasks to come
        checkpoint["state_dict"] = self.state_dict()
        tasks = self.sequence.num_tasks
        note(f"going on after task {num_tasks} of the checkpoint, now of {tasks}; new outputs: {self.new_outputs}")

    def _resize(self, num_classes: int, num_tasks: int) -> None:
        if num_classes != self.num_classes:
            self.grow(num_classes)
        for name in MATRICES:
            setattr(self, name, resized(self.get_buffer(name), (num_tasks, num_tasks), torch.nan))


def grow_as_in_other_processes(module: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Grow a loaded method before it gets the weights of a fit in other processes, which has grown copies of it."""
    assert isinstance(module, GrowingLearner)
    outputs = len(state.get(f"{prefix}is_seen_class", ()))
    if outputs > module.num_classes and module.loaded_from is not None:
        module.grow(outputs)
