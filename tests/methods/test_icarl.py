import pytest
import torch
from tiny import Fit, TinySequence, small_net
from torch import nn
from torch.nn import functional

from ddn_lightning import ConfigurationError, ICaRL, Samples


def method_in_task(task: int) -> ICaRL:
    method = ICaRL(small_net(), num_classes=6)
    method.progress.begin(task)
    method.is_old_class[: 2 * task] = True
    method.is_seen_class[: 2 * task + 2] = True
    nn.init.normal_(method.old_network.head.weight)
    return method


@pytest.mark.parametrize("task", [0, 1, 2])
def test_each_output_is_a_binary_classifier_and_old_ones_are_distilled(task: int) -> None:
    method = method_in_task(task)
    current = Samples(torch.randn(7, 1, 8, 8), torch.randint(2 * task + 2, (7,)))
    logits, old = method(current.images), method.old_network(current.images)
    terms = []
    for row, label in enumerate(current.labels.tolist()):
        for output in range(2 * task + 2):
            target = torch.sigmoid(old[row, output]) if output < 2 * task else torch.tensor(float(output == label))
            p = torch.sigmoid(logits[row, output])
            terms.append(-target * p.log() - (1 - target) * (1 - p).log())
    loss = method.current_loss(current)
    assert torch.allclose(loss.total, torch.stack(terms).mean())
    gradients = torch.autograd.grad(loss.total, method.head.bias)[0]
    assert (gradients[2 * task + 2 :] == 0).all()


@pytest.mark.parametrize("normalise", [False, True])
def test_the_prediction_is_the_nearest_mean_of_exemplars(fit: Fit, normalise: bool) -> None:
    sequence = TinySequence(batch_size=6)
    method = fit(lambda: ICaRL(small_net(), num_classes=6, buffer_size=20, normalise=normalise), sequence)
    assert isinstance(method, ICaRL)
    method.eval()
    held = method.exemplars.samples
    assert held.labels.bincount().tolist() == [3] * 6
    means = []
    for label in range(6):
        features = method.backbone(method.transform(held.images[held.labels == label]))
        features = functional.normalize(features) if normalise else features
        means.append(functional.normalize(features.mean(0), dim=0) if normalise else features.mean(0))
    images = method.transform(sequence.test_set.images)
    for image, scores in zip(images[:20], method.class_scores(images[:20]), strict=True):
        feature = method.backbone(image[None])[0]
        feature = functional.normalize(feature, dim=0) if normalise else feature
        distances = torch.stack([(feature - mean).square().sum() for mean in means])
        assert torch.allclose(scores, -distances, atol=1e-4)
        assert scores.argmax() == distances.argmin()


def test_exemplars_are_the_best_of_each_class_and_are_trained_on(fit: Fit) -> None:
    seen: dict[int, set[int]] = {}

    class Watch(ICaRL):
        def current_loss(self, current: Samples) -> object:  # type: ignore[override]
            seen.setdefault(self.task, set()).update(current.labels.tolist())
            return super().current_loss(current)

    method = fit(lambda: Watch(small_net(), num_classes=6, buffer_size=13), TinySequence(batch_size=6))
    assert seen == {0: {0, 1}, 1: {0, 1, 2, 3}, 2: set(range(6))}
    assert method.exemplars.samples.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert method.exemplars.samples.tasks.tolist() == [label // 2 for label in method.exemplars.samples.labels]


def test_old_outputs_are_those_of_the_last_tasks_network(fit: Fit) -> None:
    class Watch(ICaRL):
        def end_task(self) -> None:
            super().end_task()
            assert torch.equal(self.old_network.head.weight, self.head.weight)
            assert not self.old_network.head.weight.requires_grad

        def begin_task(self) -> None:
            super().begin_task()
            assert self.is_old_class.nonzero().flatten().tolist() == list(range(2 * self.task))

    method = fit(lambda: Watch(small_net(), num_classes=6), TinySequence(batch_size=6))
    assert method.tasks_finished == 3


def test_a_memory_too_small_for_all_classes_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="buffer_size must be at least num_classes = 6.*got 5"):
        ICaRL(small_net(), num_classes=6, buffer_size=5)


def test_the_learning_rate_is_the_published_one() -> None:
    assert ICaRL(small_net(), num_classes=6).lr == 0.1
    assert ICaRL(small_net(), num_classes=6, lr=0.03).lr == 0.03
