from math import sqrt

import pytest
import torch
from every_method import build
from tiny import Fit, TinySequence, small_net
from torch import Tensor
from torch.nn import functional

from ddn_lightning import LUCIR, ReplayLoss, Samples


def reference(method: LUCIR, current: Samples, old: list[int], new: list[int]) -> Tensor:
    """Every term sample by sample."""
    with torch.no_grad():
        old_features = method.old_network.backbone(current.images)
    features = method.backbone(current.images)
    entropies, turns, hinges = [], [], []
    for feature, old_feature, label in zip(features, old_features, current.labels.tolist(), strict=True):
        cosine = {c: functional.cosine_similarity(feature, method.head.weight[c], dim=0) for c in [*old, *new]}
        logits = torch.stack([method.head.scale * value for value in cosine.values()])
        entropies.append(functional.cross_entropy(logits, torch.tensor(list(cosine).index(label))))
        turns.append(1 - functional.cosine_similarity(feature, old_feature, dim=0))
        if label in old:
            nearest = sorted((cosine[c] for c in new), key=lambda value: value.item(), reverse=True)
            hinges += [(0.4 - cosine[label] + other).clamp(min=0) for other in nearest[: method.hardest_classes]]
    loss = torch.stack(entropies).mean() + 2.0 * sqrt(len(old) / len(new)) * torch.stack(turns).mean()
    return loss + 0.7 * torch.stack(hinges).mean() if hinges else loss


@pytest.mark.parametrize("hardest", [1, 2, 5])
def test_the_loss_of_every_step_is_that_of_a_computation_by_sample(fit: Fit, hardest: int) -> None:
    """In the first task cross-entropy among its classes; then also distillation and, with old classes, a ranking."""
    batches = []

    class Watch(LUCIR):
        def current_loss(self, current: Samples) -> ReplayLoss:
            loss = super().current_loss(current)
            order = self.sequence.task_classes.flatten().tolist()
            old, new, later = order[: 2 * self.task], order[2 * self.task :][:2], order[2 * self.task + 2 :]
            assert torch.allclose(loss.total, reference(self, current, old, new), atol=1e-5)
            (gradient,) = torch.autograd.grad(loss.total, self.head.weight, retain_graph=True)
            assert (gradient[old + later] == 0).all()  # old weights are frozen, later classes masked
            assert (gradient[new].abs().sum(1) > 0).all()
            batches.append((self.task, bool(set(old) & set(current.labels.tolist()))))
            return loss

    options = {"less_forget_weight": 2.0, "ranking_weight": 0.7, "margin": 0.4, "hardest_classes": hardest}
    sequence = TinySequence(batch_size=4, class_order_seed=3)
    fit(lambda: Watch(small_net(), num_classes=6, buffer_size=12, fine_tuning_epochs=1, lr=0.1, **options), sequence)
    assert {(0, False), (1, True), (1, False), (2, True)} <= set(batches)


def test_the_weight_of_feature_distillation_grows_with_old_classes(fit: Fit) -> None:
    weights = {}

    class Watch(LUCIR):
        def begin_task(self) -> None:
            super().begin_task()
            weights[self.task] = self.adaptive_weight.item()

    fit(lambda: Watch(small_net(), num_classes=6))
    assert weights == pytest.approx({0: 0.0, 1: 5.0, 2: 5.0 * sqrt(2)})


def test_new_weights_are_imprinted_and_old_ones_wait_for_the_fine_tuning(fit: Fit) -> None:
    checked = []

    class Watch(LUCIR):
        def begin_task(self) -> None:
            before = self.head.weight.detach().clone()
            super().begin_task()
            self.at_begin = self.head.weight.detach().clone()
            if self.task == 0:
                assert torch.equal(before, self.at_begin)
                return
            old, new = list(range(2 * self.task)), [2 * self.task, 2 * self.task + 1]
            assert torch.equal(before[old], self.at_begin[old])
            data = self.sequence.training_samples(self.task)
            for label in new:
                features = self.backbone(self.transform(data.images[data.labels == label]))
                mean = functional.normalize(features, dim=1).mean(0)
                expected = mean / mean.norm() * before[old].norm(dim=1).mean()
                assert torch.allclose(self.at_begin[label], expected, atol=1e-5)
            checked.append("imprinted")

        def end_task(self) -> None:
            old = list(range(2 * self.task))
            assert torch.equal(self.head.weight[old], self.at_begin[old])
            trained, backbone = self.head.weight.detach().clone(), self.backbone.layers[0].weight.detach().clone()
            super().end_task()
            assert torch.equal(backbone, self.backbone.layers[0].weight)
            assert torch.equal(trained, self.head.weight) == (self.task == 0)
            later = 2 * self.task + 2
            assert torch.equal(trained[later:], self.head.weight[later:])
            assert torch.equal(self.old_network.head.weight, self.head.weight)
            checked.append("fine-tuned")

    fit(lambda: Watch(small_net(), num_classes=6, buffer_size=12), TinySequence(batch_size=6))
    assert checked == ["fine-tuned", "imprinted", "fine-tuned", "imprinted", "fine-tuned"]


def test_the_fine_tuning_is_sgd_on_the_balanced_exemplars(fit: Fit) -> None:
    checked = []

    class Unaugmented(TinySequence):
        padding, flip = 0, False

    class Watch(LUCIR):
        def choose_exemplars(self) -> None:  # right before the fine-tuning
            super().choose_exemplars()
            held = self.exemplars.samples
            assert len(set(held.labels.bincount().tolist())) == 1
            weight = self.head.weight.detach().clone().requires_grad_()
            scale = self.head.scale.detach().clone().requires_grad_()
            with torch.no_grad():
                features = self.backbone(self.transform(held.images))
            for _ in range(3):
                cosines = torch.stack([functional.cosine_similarity(features, w[None]) for w in weight], dim=1)
                loss = functional.cross_entropy(scale * cosines[:, : 2 * self.task + 2], held.labels)
                gradients = torch.autograd.grad(loss, [weight, scale])
                with torch.no_grad():
                    weight -= 0.2 * gradients[0]
                    scale -= 0.2 * gradients[1]
            self.expected = weight, scale

        def end_task(self) -> None:
            super().end_task()
            if self.task:
                assert torch.allclose(self.head.weight, self.expected[0], atol=1e-5)
                assert torch.allclose(self.head.scale, self.expected[1], atol=1e-5)
                checked.append(self.task)

    options = {"fine_tuning_epochs": 3, "fine_tuning_lr": 0.2, "replay_batch_size": 50}
    fit(lambda: Watch(small_net(), num_classes=6, buffer_size=12, **options), Unaugmented(batch_size=6))
    assert checked == [1, 2]


def test_a_class_without_images_keeps_a_finite_weight(fit: Fit) -> None:
    method = fit(lambda: build(LUCIR), TinySequence(batch_size=6, per_class=(12, 12, 12, 0, 12, 12)))
    assert method.get_parameter("head.weight").isfinite().all()
    assert method.tasks_finished == 3
