from collections.abc import Callable
from typing import Any

import pytest
import torch
from every_method import build
from lightning.pytorch import Trainer, seed_everything
from tiny import DropoutNet, Fit, TinySequence, small_net
from torch import nn

from ddn_lightning import ER, DataDistillNet, ICaRL, Samples, SmallNet
from ddn_lightning.errors import ConfigurationError

MakeTrainer = Callable[..., Trainer]


class NormalisedNet(SmallNet):
    """Ends with a BatchNorm over one value for each image."""

    def __init__(self) -> None:
        super().__init__(width=4, feature_dim=8)
        self.layers.append(nn.BatchNorm1d(8))


def fit(make_trainer: MakeTrainer, net: Callable[[], SmallNet], batch_size: int, **trainer_arguments: object) -> ER:
    seed_everything(0, verbose=False)
    method = ER(net(), num_classes=6, buffer_size=10)
    sequence = TinySequence(batch_size=batch_size, drop_last=False)
    make_trainer(**trainer_arguments).fit(method, sequence)
    return method


def test_a_memory_without_room_is_refused_before_training(make_trainer: MakeTrainer) -> None:
    for size in (10**12, 10**30):
        method = ER(small_net(), num_classes=6, buffer_size=size)
        with pytest.raises(ConfigurationError, match=f"buffer_size must fit into memory, got {size}: "):
            make_trainer().fit(method, TinySequence())


@pytest.mark.parametrize("sizes", [{"replay_batch_size": 1}, {"buffer_size": 1}])
def test_draws_of_a_single_image_are_refused_if_batch_norm_cannot_take_them(
    make_trainer: MakeTrainer, sizes: dict[str, int]
) -> None:
    given = {"buffer_size": 10, "replay_batch_size": 5, **sizes}
    with pytest.raises(ConfigurationError, match="leaves a device one image of a draw"):
        make_trainer().fit(ER(NormalisedNet(), num_classes=6, **given), TinySequence(batch_size=6))
    make_trainer().fit(ER(small_net(), num_classes=6, **given), TinySequence(batch_size=6))


def test_exemplars_are_not_allocated_ahead(make_trainer: MakeTrainer) -> None:
    method = ICaRL(small_net(), num_classes=6, buffer_size=10**12)
    make_trainer(max_steps=1).fit(method, TinySequence(batch_size=6))


@pytest.mark.parametrize("batch_size", [1, 23])  # of 24 images in the first task
def test_a_batch_of_one_is_refused_if_batch_norm_cannot_take_it(make_trainer: MakeTrainer, batch_size: int) -> None:
    with pytest.raises(ConfigurationError, match=f"batch_size = {batch_size} leaves a batch of one image"):
        fit(make_trainer, NormalisedNet, batch_size)


def test_a_batch_of_one_is_accepted_otherwise(make_trainer: MakeTrainer) -> None:
    fit(make_trainer, small_net, 23)  # without BatchNorm
    fit(make_trainer, NormalisedNet, 23, limit_train_batches=1)  # stops before the small batch


def test_the_checks_do_not_change_the_run(make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = fit(make_trainer, DropoutNet, 23).state_dict()
    monkeypatch.setattr("ddn_lightning.core.replay_method.check_start", lambda *_: None)
    unchecked = fit(make_trainer, DropoutNet, 23).state_dict()
    for name in ("backbone.layers.0.weight", "backbone.layers.1.running_mean", "head.weight"):
        assert torch.equal(checked[name], unchecked[name])


def test_a_later_task_smaller_than_a_batch_is_refused_before_training(make_trainer: MakeTrainer) -> None:
    method = ER(small_net(), num_classes=6, buffer_size=10)
    with pytest.raises(ConfigurationError, match="task 3 has 12 samples, fewer than one batch of batch_size = 20"):
        make_trainer().fit(method, TinySequence(batch_size=20, task_sizes=[2, 3, 1]))
    assert method.trainer.global_step == 0


class ReturnsTensor(ER):
    def loss(self, current: Samples, *memory: Samples) -> Any:
        return super().loss(current, *memory).total


@pytest.mark.parametrize("distiller", [None, DataDistillNet])
def test_a_loss_that_is_none_is_named(fit: Fit, distiller: Any) -> None:
    with pytest.raises(ConfigurationError, match="loss of ReturnsTensor must return a ReplayLoss, got a Tensor"):
        fit(lambda: build(ReturnsTensor, distiller))
