from collections.abc import Callable
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from tiny import TinySequence, small_net
from torch import Tensor

from ddn_lightning import ER, ConfigurationError, ReplayMethod, Samples, SplitDigits
from ddn_lightning.data.task_sequence import TaskSequence


class Watch(Callback):
    """Notes down which samples were trained on and which tasks were evaluated, epoch by epoch."""

    def __init__(self) -> None:
        self.trained: dict[int, list[Samples]] = {}
        self.evaluated: dict[int, set[int]] = {}

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        self.trained.setdefault(trainer.current_epoch, []).append(args[2])

    def on_validation_batch_end(self, trainer: Trainer, *args: Any) -> None:
        self.evaluated.setdefault(trainer.current_epoch, set()).update(args[2].tasks.tolist())


def er() -> ReplayMethod:
    return ER(small_net(), num_classes=6, buffer_size=10)


def test_evaluations_within_an_epoch_are_refused(make_trainer: Callable[..., Trainer]) -> None:
    with pytest.raises(ConfigurationError, match="val_check_interval must be left at 1.0, got 2"):
        make_trainer(val_check_interval=2).fit(ER(small_net(), num_classes=6), TinySequence())


def test_one_fit_trains_each_task_in_its_epochs_and_evaluates_the_tasks_seen(fit: Callable[..., ReplayMethod]) -> None:
    watch = Watch()
    fit(er, TinySequence(epochs_per_task=2, batch_size=5), callbacks=[watch])
    assert list(watch.trained) == list(range(6))
    for epoch, batches in watch.trained.items():
        assert {label for batch in batches for label in batch.labels.tolist()} == {epoch // 2 * 2, epoch // 2 * 2 + 1}
        assert sum(len(batch) for batch in batches) == 24
    assert watch.evaluated == {1: {0}, 3: {0, 1}, 5: {0, 1, 2}}


def test_each_epoch_has_its_own_order_from_the_seed(fit: Callable[..., ReplayMethod]) -> None:
    def orders(seed: int) -> list[list[int]]:
        watch = Watch()
        fit(er, TinySequence(epochs_per_task=2), callbacks=[watch], seed=seed)
        epochs = watch.trained.values()
        return [[image.sum().item() for batch in batches for image in batch.images] for batches in epochs]

    assert orders(0) == orders(0)
    assert orders(0) != orders(1)
    assert orders(0)[0] != orders(0)[1]
    assert sorted(orders(0)[0]) == sorted(orders(0)[1])


def test_online_drops_the_short_batch_and_shows_each_sample_once(fit: Callable[..., ReplayMethod]) -> None:
    watch = Watch()
    fit(er, TinySequence(batch_size=7), callbacks=[watch])
    for batches in watch.trained.values():
        assert [len(batch) for batch in batches] == [7, 7, 7]
        seen = torch.cat([batch.images.flatten(1) for batch in batches])
        assert len(seen.unique(dim=0)) == 21


class CIFARSized(TaskSequence):
    name, mean, std, num_classes = "cifar-sized", (0.0,), (1.0,), 10

    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        labels = torch.arange(10).repeat_interleave(5000 if train else 1000)
        return torch.zeros(len(labels), 1, 1, 1, dtype=torch.uint8), labels


@pytest.mark.parametrize(("epochs", "steps"), [(1, 312), (50, 313)])
def test_cifar10_has_the_published_steps(make_trainer: Callable[..., Trainer], epochs: int, steps: int) -> None:
    sequence = CIFARSized(num_tasks=5, epochs_per_task=epochs)
    sequence.trainer = make_trainer()
    sequence.setup("fit")
    loader = sequence.train_dataloader()
    assert len(loader) == steps
    assert sum(1 for _ in loader) == steps


def test_class_order_seed_shuffles_which_classes_form_a_task() -> None:
    natural, shuffled = TinySequence(), TinySequence(class_order_seed=1)
    assert natural.task_classes.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert sorted(shuffled.task_classes.flatten().tolist()) == list(range(6))
    assert shuffled.task_classes.tolist() != natural.task_classes.tolist()
    assert TinySequence(class_order_seed=1).task_classes.tolist() == shuffled.task_classes.tolist()
    shuffled.setup("fit")
    for task in range(3):
        assert set(shuffled.training_samples(task).labels.tolist()) == set(shuffled.task_classes[task].tolist())


def test_evaluations_within_a_task_are_logged_but_not_stored(fit: Callable[..., ReplayMethod]) -> None:
    watch = Watch()
    often = fit(er, TinySequence(epochs_per_task=2, evaluate_every_n_epochs=1), callbacks=[watch])
    assert list(watch.evaluated) == list(range(6))
    seldom = fit(er, TinySequence(epochs_per_task=2))
    assert torch.equal(often.accuracy_matrix.nan_to_num(), seldom.accuracy_matrix.nan_to_num())


def test_digits_are_real_balanced_and_have_a_fixed_split() -> None:
    first, second = SplitDigits(), SplitDigits()
    for sequence in (first, second):
        sequence.setup("fit")
    assert (len(first.train_set), len(first.test_set)) == (1437, 360)
    assert torch.equal(first.test_set.images, second.test_set.images)
    assert first.train_set.images.dtype == torch.uint8
    assert first.train_set.images.max() == 255
    assert first.test_set.labels.bincount().tolist() == pytest.approx([36] * 10, abs=1)
    pixels = first.train_set.images / 255
    assert (pixels.mean().item(), pixels.std().item()) == pytest.approx((first.mean[0], first.std[0]), abs=1e-4)
    train = {tuple(image.flatten().tolist()) for image in first.train_set.images}
    assert not train & {tuple(image.flatten().tolist()) for image in first.test_set.images}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_tasks": 4}, "num_tasks must divide the 6 classes of TinySequence, got 4"),
        ({"num_tasks": 0}, "num_tasks must be positive, got 0"),
        ({"epochs_per_task": 0}, "epochs_per_task must be positive, got 0"),
        ({"batch_size": -1}, "batch_size must be positive, got -1"),
        ({"epochs_per_task": 5, "evaluate_every_n_epochs": 2}, "must divide epochs_per_task = 5.*got 2"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        TinySequence(**arguments)


def test_a_batch_larger_than_a_task_is_refused(fit: Callable[..., ReplayMethod]) -> None:
    with pytest.raises(ConfigurationError, match="task 1 has 24 samples, fewer than one batch of batch_size = 32"):
        fit(er, TinySequence(batch_size=32))


def test_max_epochs_must_agree_with_the_sequence(fit: Callable[..., ReplayMethod]) -> None:
    with pytest.raises(ConfigurationError, match="max_epochs must be 6 = 3 tasks x 2 epochs_per_task.*got 4"):
        fit(er, TinySequence(epochs_per_task=2), max_epochs=4)
    assert fit(er, TinySequence(batch_size=12), max_epochs=3).tasks_finished == 3


@pytest.mark.filterwarnings("ignore:`max_epochs` was not set")
def test_a_default_trainer_gets_the_length_of_the_sequence(fit: Callable[..., ReplayMethod]) -> None:
    assert fit(er, TinySequence(batch_size=12), max_epochs=None).trainer.current_epoch == 3


def test_a_second_fit_is_refused(make_trainer: Callable[..., Trainer]) -> None:
    trainer = make_trainer()
    trainer.fit(er(), TinySequence(batch_size=12))
    with pytest.raises(ConfigurationError, match="already run a fit.*make a new Trainer"):
        trainer.fit(er(), TinySequence(batch_size=12))


@pytest.mark.filterwarnings("ignore:You passed in a `val_dataloader` but have no `validation_step`")
def test_another_lightning_module_can_learn_the_sequence_too(make_trainer: Callable[..., Trainer]) -> None:
    class Plain(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.labels = torch.nn.Sequential(small_net(), torch.nn.Linear(8, 6)), set[int]()

        def training_step(self, batch: Samples, batch_index: int) -> Tensor:
            self.labels |= set(batch.labels.tolist())
            return torch.nn.functional.cross_entropy(self.net(batch.images / 255), batch.labels)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    module = Plain()
    make_trainer().fit(module, TinySequence(batch_size=12, as_tuples=False))
    assert module.labels == set(range(6))


def test_it_can_be_printed_without_loading_an_image() -> None:
    class Unloaded(TinySequence):
        def load(self, train: bool) -> tuple[Tensor, Tensor]:
            raise AssertionError

    assert str(Unloaded(epochs_per_task=2)) == "Unloaded of tiny, 3 tasks of 2 epochs"
