from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from tiny import BatchNormNet, DropoutNet, Fit, random_samples, small_net
from torch import Tensor

from ddn_lightning import MKD, ConfigurationError
from ddn_lightning.data.image_transform import ImageTransform


def untrained(**arguments: Any) -> MKD:
    """With a teacher that differs from the student."""
    method = MKD(small_net(), num_classes=6, transform=ImageTransform((0.5,), (0.25,), flip=True), **arguments)
    with torch.no_grad():
        for parameter in method.teacher.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return method


def divergence(student: Tensor, teacher: Tensor) -> Tensor:
    """KL of softened predictions, term by term."""
    p, q = torch.softmax(teacher / 4, dim=1), torch.softmax(student / 4, dim=1)
    return 16 * (p * (p / q).log()).sum(dim=1).mean()


def test_the_student_follows_the_teacher_on_the_augmented_and_on_the_plain_view() -> None:
    method = untrained(distillation_weight=0.7)
    current, memory = method.augment(random_samples(5)), method.augment(random_samples(8))
    loss = method.loss(current, memory)
    expected = torch.zeros(())
    for samples in (current, memory):
        teacher = method.teacher(samples.images)
        plain = method(method.normalised(samples.raw))
        expected = expected + (divergence(method(samples.images), teacher) + divergence(plain, teacher)) / 2
    labels = torch.nn.functional.cross_entropy
    new, old = labels(method(current.images), current.labels), labels(method(memory.images), memory.labels)
    assert torch.allclose(loss.other, new + 0.7 * expected, atol=1e-5)
    assert torch.allclose(loss.rehearsal, old)
    assert not any(parameter.requires_grad for parameter in method.teacher.parameters())


@pytest.mark.parametrize("running_statistics", ["all", "memory"])
def test_the_teachers_statistics_move_with_the_batches_that_move_the_students(running_statistics: Any) -> None:
    transform = ImageTransform((0.5,), (0.25,))
    method = MKD(BatchNormNet(), num_classes=6, transform=transform, running_statistics=running_statistics)
    method.batch_norm.is_replaying = True
    current, memory = method.augment(random_samples(5)), method.augment(random_samples(8))
    memory.slots = torch.arange(8)
    method.loss(current, memory)
    counts = {name: int(value) for name, value in method.named_buffers() if "num_batches" in name}
    batches = 2 if running_statistics == "all" else 1
    assert counts
    assert all(count == (batches if "teacher" in name else 2 * batches) for name, count in counts.items())  # 2 views


def test_the_teacher_is_a_moving_average_of_the_network(fit: Fit) -> None:
    class ByHand(Callback):
        weight: Tensor

        def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
            assert torch.equal(pl_module.teacher.head.weight, pl_module.head.weight)
            self.weight = pl_module.head.weight.detach().clone()

        def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *_: object) -> None:
            self.weight = 0.9 * self.weight + 0.1 * pl_module.head.weight.detach()

    by_hand = ByHand()
    method = fit(lambda: MKD(DropoutNet(), num_classes=6, teacher_rate=0.1), callbacks=[by_hand])
    assert torch.allclose(method.teacher.head.weight, by_hand.weight, atol=1e-6)
    assert not torch.allclose(method.teacher.head.weight, method.head.weight, atol=1e-4)


def test_the_average_of_both_networks_predicts() -> None:
    method = untrained()
    with torch.no_grad():
        method.teacher.head.bias[2] = 1000.0
        method.head.bias[4] = 600.0
        method.head.bias[2] = -700.0
    images = torch.randn(3, 1, 8, 8)
    found = {}
    for name in ("student", "teacher", "average"):
        method.evaluate = name
        found[name] = method.class_scores(images).argmax(dim=1).tolist()
    assert found == {"student": [4] * 3, "teacher": [2] * 3, "average": [4] * 3}  # 300 against 150
    weight = (method.head.weight + method.teacher.head.weight) / 2
    features = torch.func.functional_call(
        method.backbone,
        {n: (p + method.teacher.get_parameter(f"backbone.{n}")) / 2 for n, p in method.backbone.named_parameters()},
        (images,),
    )
    bias = (method.head.bias + method.teacher.head.bias) / 2
    assert torch.allclose(method.class_scores(images), features @ weight.T + bias, atol=1e-3)


def test_a_teacher_that_is_not_an_average_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="teacher_rate must be between 0 and 1, got 1.5"):
        MKD(small_net(), num_classes=6, teacher_rate=1.5)
