"""What iCaRL, LUCIR and BiC share: the choice of exemplars and the work between tasks."""

from collections.abc import Callable

import pytest
import torch
from every_method import build
from tiny import DropoutNet, Fit, TinySequence
from torch import Tensor, nn

from ddn_lightning import LUCIR, BiC, ExemplarMethod, ICaRL, Samples


def greedy(features: Tensor, number: int) -> list[int]:
    """iCaRL's Algorithm 4, with a loop over candidates."""
    chosen: list[int] = []
    for _ in range(number):
        rest = [i for i in range(len(features)) if i not in chosen]
        distances = [(features.mean(0) - features[[*chosen, i]].mean(0)).norm() for i in rest]
        chosen.append(rest[int(torch.stack(distances).argmin())])
    return chosen


@pytest.mark.parametrize("method_class", [ICaRL, LUCIR])
def test_exemplars_are_herded_in_the_features_of_images_as_they_are(
    fit: Fit, method_class: type[ExemplarMethod]
) -> None:
    checked = []

    class Watch(method_class):  # type: ignore[misc,valid-type]
        def choose_exemplars(self) -> None:
            super().choose_exemplars()
            held, data = self.exemplars.samples, self.sequence.training_samples(self.task)
            self.backbone.eval()
            for label in self.sequence.task_classes[self.task].tolist():
                images = data.images[data.labels == label]
                with torch.no_grad():
                    features = self.backbone(self.transform(images).double())
                expected = images[greedy(features, 10 // (2 * self.task + 2))]
                assert torch.equal(held.images[held.labels == label], expected)
                checked.append(label)
            self.backbone.train()

    fit(lambda: build(Watch).double(), TinySequence(batch_size=6, class_order_seed=3))
    assert sorted(checked) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("method_class", [ICaRL, LUCIR, BiC])
def test_work_between_tasks_is_done_in_evaluation_mode_and_leaves_the_backbone_alone(
    fit: Fit, method_class: type[ExemplarMethod]
) -> None:
    modes: dict[str, set[bool]] = {"between": set(), "within": set(), "old": set()}

    class Watch(method_class):  # type: ignore[misc,valid-type]
        where = "within"

        def setup(self, stage: str) -> None:
            super().setup(stage)
            self.backbone.register_forward_hook(lambda module, *_: modes[self.where].add(module.training))
            old_backbone = self.old_network.get_submodule("backbone")
            old_backbone.register_forward_hook(lambda module, *_: modes["old"].add(module.training))

        def begin_task(self) -> None:
            self.aside(super().begin_task)

        def end_task(self) -> None:
            self.aside(super().end_task)

        def aside(self, work: Callable[[], None]) -> None:
            before = {name: value.clone() for name, value in self.backbone.state_dict().items()}
            self.where = "between"
            work()
            self.where = "within"
            assert self.backbone.training
            assert all(torch.equal(value, before[name]) for name, value in self.backbone.state_dict().items())

    fit(lambda: build(Watch, backbone=DropoutNet()), TinySequence(batch_size=6), limit_val_batches=0)
    assert modes == {"between": {False}, "within": {True}, "old": {False}}


def test_each_task_sees_its_data_and_all_exemplars_once_per_epoch(fit: Fit) -> None:
    counts: dict[int, list[int]] = {}

    class Watch(ICaRL):
        def training_step(self, batch: Samples, batch_index: int) -> dict[str, Tensor]:
            seen = counts.setdefault(self.task, [0] * 6)
            counts[self.task] = [a + b for a, b in zip(seen, batch.labels.bincount(minlength=6).tolist(), strict=True)]
            return super().training_step(batch, batch_index)

    fit(lambda: build(Watch, backbone=_flat()), TinySequence(batch_size=7, drop_last=False))
    assert counts == {0: [12, 12, 0, 0, 0, 0], 1: [5, 5, 12, 12, 0, 0], 2: [2, 2, 2, 2, 12, 12]}


def _flat() -> nn.Module:
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    network.feature_dim = 4  # type: ignore[assignment]
    return network
