import copy

import pytest
import torch
from every_method import build
from tiny import Fit, TinySequence, small_net
from torch import Tensor
from torch.nn import functional

from ddn_lightning import MIR, ConfigurationError, Samples


def losses(network: torch.nn.Module, samples: Samples) -> Tensor:
    return functional.cross_entropy(network(samples.images), samples.labels, reduction="none")


def test_the_samples_whose_loss_rises_most_by_a_real_step_are_replayed(fit: Fit) -> None:
    """The step is taken by torch's SGD on a copy of the network."""
    compared = []

    class Watch(MIR):
        def retrieve(self, current: Samples) -> list[Samples]:
            replayed = super().retrieve(current)
            if replayed:
                whole = self.stored(self.memory.slots, torch.Generator())  # all are candidates; not augmented here
                stepped = copy.deepcopy(self.network)
                optimizer = torch.optim.SGD(stepped.parameters(), lr=self.lr)
                losses(stepped, current).mean().backward()
                optimizer.step()
                rise = (losses(stepped, whole) - losses(self.network, whole)).detach()
                best = whole.slots[rise.argsort(descending=True)[: len(replayed[0])]]
                compared.append(sorted(best.tolist()) == sorted(replayed[0].slots.tolist()))
            return replayed

    class Plain(TinySequence):
        padding, flip = 0, False

    fit(lambda: build(Watch, backbone=small_net(), buffer_size=20, candidates=20, lr=0.1), Plain(batch_size=6))
    assert len(compared) == 11
    assert all(compared)


def test_a_choice_among_too_few_candidates_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="candidates must be at least replay_batch_size = 5, got 4"):
        build(MIR, candidates=4)


def test_a_part_of_the_network_without_a_gradient_stays_as_it_is(fit: Fit) -> None:
    class Spare(MIR):
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, **kwargs)  # type: ignore[arg-type]
            self.backbone.spare = torch.nn.Parameter(torch.ones(2))

    assert fit(lambda: build(Spare), max_steps=3).trainer.global_step == 3
