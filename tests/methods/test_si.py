import pytest
import torch
from every_method import build
from tiny import Fit, TinySequence, small_net

from ddn_lightning import ER, SI, ConfigurationError, ReplayLoss, ReplayMethod, Samples


class Parabola(SI):
    """The loss is a parabola in each weight of the head, lowest at 0 and, in the second task, at 1.25."""

    def loss(self, current: Samples, *memory: Samples) -> ReplayLoss:
        distances = self.head.weight - (1.25 if self.task else 0)
        return ReplayLoss(distances.square().sum() / 2, self.logits_of(current))

    def current_loss(self, current: Samples) -> ReplayLoss:
        return self.loss(current)

    def end_task(self) -> None:
        super().end_task()
        weight, importance = self.head.weight, self.importances[-2]
        self.found = [*getattr(self, "found", []), (weight.mean().item(), importance.mean().item())]


def test_importances_and_steps_are_those_of_a_parabola_by_hand(fit: Fit) -> None:
    def make() -> SI:
        method = Parabola(small_net(), num_classes=6, lr=0.5, penalty=0.5, damping=0.0625)
        torch.nn.init.ones_(method.head.weight)
        return method

    method = fit(make, TinySequence(num_tasks=2, batch_size=6), limit_train_batches=2)
    # first task: 1, 0.5, 0.25 with gradients 1 and 0.5; the gain is 0.5 + 0.125, over 0.75² + 0.0625
    # second task: 0.25, 0.75, 0.75 with gradients -1 and -0.5, then against a penalty of 0.5; 0.5 over 0.5² + 0.0625
    assert method.found == [(0.25, 1.0), (0.75, pytest.approx(2.6))]
    assert all(not importance.any() for importance in list(method.importances)[:-2])  # the loss does not depend on them
    assert not any(gain.any() for gain in method.gains)


def test_an_importance_is_never_negative(fit: Fit) -> None:
    method = fit(lambda: build(SI, lr=0.3))
    lowest = min(importance.min().item() for importance in method.importances)
    assert lowest == 0
    assert max(importance.max().item() for importance in method.importances) > 0


def test_without_a_penalty_it_is_experience_replay_and_with_one_it_is_not(fit: Fit) -> None:
    def weights(method_class: type[ReplayMethod], **arguments: float) -> torch.Tensor:
        return fit(lambda: build(method_class, **arguments)).head.weight.detach()

    plain = weights(ER)
    assert torch.equal(weights(SI, penalty=0), plain)
    assert not torch.equal(weights(SI, penalty=5.0), plain)


def test_two_ranks_find_the_importances_of_one(fit: Fit) -> None:
    def trained(**arguments: object) -> ReplayMethod:
        sequence = TinySequence(batch_size=5, drop_last=False)
        return fit(lambda: build(SI, backbone=small_net()).double(), sequence, **arguments)

    one, two = trained(), trained(devices=2, strategy="ddp_fork")
    for name, parameter in one.named_parameters():  # among them the importances
        assert (parameter - two.get_parameter(name)).abs().max() < 1e-9, name


def test_no_damping_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="damping must be positive, got 0"):
        SI(small_net(), num_classes=6, damping=0)
