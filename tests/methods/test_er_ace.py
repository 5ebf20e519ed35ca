import torch
from tiny import Fit, TinySequence, small_net
from torch import Tensor
from torch.nn import functional

from ddn_lightning import ERACE, ReplayLoss, Samples


def augmented(labels: list[int]) -> Samples:
    return Samples(torch.randn(len(labels), 1, 8, 8), torch.tensor(labels))


def test_absent_seen_classes_get_no_gradient_and_unseen_ones_do() -> None:
    method = ERACE(small_net(), num_classes=6)
    method.is_met_class[[0, 2, 3, 5]] = True  # a shuffled class order: 1 and 4 are still to come
    current = augmented([3, 3, 5])
    loss = method.loss(current, augmented([0, 2])).other
    (gradient,) = torch.autograd.grad(loss, method.head.weight)
    assert (gradient[[0, 2]] == 0).all()
    assert (gradient[[1, 3, 4, 5]].abs().sum(1) > 0).all()


def test_the_loss_is_a_cross_entropy_without_those_classes() -> None:
    method = ERACE(small_net(), num_classes=6)
    method.is_met_class[[0, 1, 2, 3]] = True
    current, memory = augmented([2, 3]), augmented([0, 1, 3])
    loss = method.loss(current, memory)
    among = method(current.images)[:, [2, 3, 4, 5]]
    assert torch.allclose(loss.other, functional.cross_entropy(among, torch.tensor([0, 1])))
    assert torch.allclose(loss.rehearsal, functional.cross_entropy(method(memory.images), memory.labels))
    assert torch.equal(loss.current_logits, method(current.images))


def test_classes_count_as_seen_from_their_first_batch_on(fit: Fit) -> None:
    met: list[set[int]] = []
    labels: list[set[int]] = []

    class Watch(ERACE):
        def training_step(self, batch: Samples, batch_index: int) -> dict[str, Tensor]:
            met.append(set(self.is_met_class.nonzero().flatten().tolist()))
            labels.append(set(batch.labels.tolist()))
            return super().training_step(batch, batch_index)

    fit(lambda: Watch(small_net(), num_classes=6), TinySequence(batch_size=2))
    for step, known in enumerate(met):
        assert known == set().union(*labels[:step])
    half_met = [known & {2 * task, 2 * task + 1} for known in met for task in (1, 2)]
    assert any(len(known) == 1 for known in half_met)


def test_there_is_no_replay_in_the_first_task(fit: Fit) -> None:
    replayed = []

    class Watch(ERACE):
        def loss(self, current: Samples, *memory: Samples) -> ReplayLoss:
            replayed.append(self.task)
            return super().loss(current, *memory)

    fit(lambda: Watch(small_net(), num_classes=6), TinySequence(batch_size=6))
    assert replayed == [1] * 4 + [2] * 4


def test_cosine_logits_do_not_depend_on_the_norm_of_features() -> None:
    method = ERACE(small_net(), num_classes=6, head_form="cosine")
    features = torch.randn(4, 8)
    logits = method.head(features)
    assert torch.allclose(logits, method.head(7 * features), atol=1e-5)
    weights = method.head.weight
    cosines = functional.cosine_similarity(features[:, None], weights[None], dim=2)
    assert torch.allclose(logits, 10 * cosines, atol=1e-5)
