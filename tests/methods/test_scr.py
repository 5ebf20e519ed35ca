from typing import Any

import pytest
import torch
from tiny import Fit, TinySequence, random_samples, small_net
from torch import Tensor
from torch.nn import functional

from ddn_lightning import SCR, ConfigurationError, DataDistillNet, LossAwareReservoir, Samples
from ddn_lightning.data.image_transform import ImageTransform
from ddn_lightning.methods.scr import contrastive_loss


def pair_by_pair(projections: Tensor, labels: list[int], temperature: float) -> Tensor:
    """The loss of the paper as its sums are written."""
    losses = []
    for i, label in enumerate(labels):
        others = [j for j in range(len(labels)) if j != i]
        positives = [j for j in others if labels[j] == label]
        total = sum((projections[i] @ projections[a] / temperature).exp() for a in others)
        logs = [((projections[i] @ projections[p] / temperature).exp() / total).log() for p in positives]
        losses.append(-sum(logs) / len(positives))
    return torch.stack(losses).mean()


def test_the_contrastive_loss_is_that_of_the_paper() -> None:
    projections = functional.normalize(torch.randn(7, 4, dtype=torch.float64))
    labels = [0, 2, 0, 2, 2, 1, 1]
    found = contrastive_loss(projections, torch.tensor(labels), 0.3)
    assert torch.allclose(found, pair_by_pair(projections, labels, 0.3))


def test_both_batches_are_contrasted_in_both_views() -> None:
    method = SCR(small_net(), num_classes=6, transform=ImageTransform((0.5,), (0.25,), flip=True), temperature=0.2)
    current, memory = method.augment(random_samples(4)), method.augment(random_samples(5))
    images = [method.normalised(part.raw) for part in (current, memory)] + [current.images, memory.images]
    projections = functional.normalize(method.head(method.backbone(torch.cat(images))))
    labels = 2 * [*current.labels.tolist(), *memory.labels.tolist()]
    loss = method.loss(current, memory)
    assert torch.allclose(loss.total, pair_by_pair(projections, labels, 0.2), atol=1e-5)
    assert loss.rehearsal is None


def nearest_means(method: SCR, images: Tensor) -> list[int]:
    """Predictions by the stored samples, class by class."""
    held = method.memory[method.memory.slots]
    features = functional.normalize(method.backbone(images))
    distances = torch.full((len(images), 6), torch.inf)
    for label in held.labels.unique().tolist():
        of_class = functional.normalize(method.backbone(method.normalised(held.images[held.labels == label])))
        mean = functional.normalize(of_class.mean(dim=0), dim=0)
        distances[:, label] = (features - mean).square().sum(dim=1)
    return distances.argmin(dim=1).tolist()


@pytest.mark.parametrize(
    ("buffer_size", "max_steps"),
    [(3, -1), (30, -1), (30, 6)],  # fewer samples than classes, several of each, and stopped within a task
)
def test_the_nearest_mean_of_the_memory_predicts(fit: Fit, buffer_size: int, max_steps: int) -> None:
    sequence = TinySequence(batch_size=6)
    method = fit(lambda: SCR(small_net(), num_classes=6, buffer_size=buffer_size), sequence, max_steps=max_steps)
    assert isinstance(method, SCR)
    method.eval()
    images = method.normalised(sequence.test_set.images)
    with torch.no_grad():
        assert method.class_scores(images).argmax(dim=1).tolist() == nearest_means(method, images)


def test_an_evaluation_within_a_task_uses_the_means_of_that_moment(fit: Fit) -> None:
    agreed: list[bool] = []

    class Watch(SCR):
        def validation_step(self, batch: Samples, batch_index: int) -> Tensor:
            scores = super().validation_step(batch, batch_index)
            agreed.append(scores.argmax(dim=1).tolist() == nearest_means(self, self.normalised(batch.images)))
            return scores

    data = TinySequence(batch_size=6, epochs_per_task=2, evaluate_every_n_epochs=1)
    fit(lambda: Watch(small_net(), num_classes=6, buffer_size=20), data)
    assert len(agreed) >= 6
    assert all(agreed)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"distiller": DataDistillNet()}, "SCR cannot take a distiller: it does not rehearse labels"),
        ({"old_memory_weight": 1.0}, "SCR cannot take old_memory_weight = 1.0: it does not rehearse labels"),
        ({"memory": LossAwareReservoir()}, "SCR cannot take LossAwareReservoir: its head gives no class scores"),
        ({"running_statistics": "memory"}, "SCR cannot take running_statistics=memory: it forwards both"),
        ({"temperature": -1}, "temperature must be positive, got -1"),
    ],
)
def test_what_needs_a_classifier_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        SCR(small_net(), num_classes=6, **arguments)
