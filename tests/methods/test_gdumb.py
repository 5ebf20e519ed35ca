import copy
from collections import Counter

import pytest
import torch
from every_method import build
from tiny import Fit, TinySequence, small_net
from torch import nn
from torch.nn import functional
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts

from ddn_lightning import ClassBalancedReservoir, ConfigurationError, DataDistillNet, GDumb, Samples
from ddn_lightning.methods.gdumb import TRAINING, annealed


class Plain(TinySequence):
    padding, flip = 0, False


@pytest.mark.parametrize("limit", [None, 0.5])
def test_the_network_is_a_plain_loop_over_the_memory_from_the_first_weights(fit: Fit, limit: float | None) -> None:
    compared, norms = [], [1.0]

    class Watch(GDumb):
        def on_fit_start(self) -> None:
            super().on_fit_start()
            self.reference = copy.deepcopy(self.network)

        def end_task(self) -> None:
            generator = torch.Generator()
            generator.set_state(self.streams[TRAINING].get_state())
            super().end_task()
            plain = copy.deepcopy(self.reference)
            optimizer = torch.optim.SGD(plain.parameters(), self.lr, momentum=0.9, weight_decay=0.01)
            held = self.memory[self.memory.slots]
            for epoch in range(3):
                optimizer.param_groups[0]["lr"] = self.lr * [0.1, 1, 1][epoch]
                for rows in torch.randperm(len(held), generator=generator).tensor_split(2):
                    optimizer.zero_grad()
                    images = (held.images[rows] / 255 - 0.5) / 0.25
                    functional.cross_entropy(plain(images), held.labels[rows]).backward()
                    if limit := self.optimization.gradient_clip_val:
                        norms.append(nn.utils.clip_grad_norm_(plain.parameters(), limit).item())
                    optimizer.step()
            for given, expected in zip(self.network.parameters(), plain.parameters(), strict=True):
                torch.testing.assert_close(given, expected)
            compared.append(len(held))

    given = {"buffer_size": 10, "memory_epochs": 3, "momentum": 0.9, "weight_decay": 0.01, "gradient_clip_val": limit}
    given |= {"lr": 0.1}
    fit(lambda: build(Watch, backbone=small_net(), **given), Plain(batch_size=6))
    assert compared == [10, 10, 10]
    assert max(norms) > 0.5


def test_the_stream_changes_no_weight(fit: Fit) -> None:
    class Watch(GDumb):
        def on_train_batch_start(self, batch: Samples, batch_index: int) -> None:
            super().on_train_batch_start(batch, batch_index)
            self.before = copy.deepcopy(dict(self.network.state_dict()))

        def after_step(self) -> None:
            assert all(torch.equal(self.before[name], value) for name, value in self.network.state_dict().items())
            steps.append(self.task)

    steps: list[int] = []
    fit(lambda: build(Watch, weight_decay=0.1, momentum=0.9))
    assert Counter(steps) == {0: 4, 1: 4, 2: 4}


def test_the_learning_rate_is_torchs_cosine_with_warm_restarts_after_one_epoch_of_a_tenth() -> None:
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)
    reference = CosineAnnealingWarmRestarts(optimizer, T_0=1, T_mult=2, eta_min=0.01)
    expected = [0.1]
    for _ in range(255):
        expected.append(reference.get_last_lr()[0])
        optimizer.step()
        reference.step()
    assert [annealed(epoch) for epoch in range(256)] == pytest.approx(expected)


def test_the_memory_has_as_many_samples_of_each_class_as_the_papers_greedy_sampler() -> None:
    """Algorithm 1: a full memory takes a sample of a class below its share in exchange for one of the largest class."""
    labels = torch.randint(7, (300,), generator=torch.Generator().manual_seed(3)).sort().values
    greedy: Counter[int] = Counter()
    memory = ClassBalancedReservoir(buffer_size=31)
    for label in labels.tolist():
        memory.add(Samples(torch.zeros(1, 1, 2, 2, dtype=torch.uint8), torch.tensor([label])))
        if greedy.total() < 31:
            greedy[label] += 1
        elif greedy[label] < 31 / len({*greedy, label}) and greedy[label] < max(greedy.values()):
            greedy[greedy.most_common(1)[0][0]] -= 1
            greedy[label] += 1
    assert sorted(memory.labels.bincount().tolist()) == sorted(greedy.values())


def test_it_refuses_a_distiller() -> None:
    with pytest.raises(ConfigurationError, match="GDumb cannot take a distiller: it does not rehearse labels"):
        build(GDumb, DataDistillNet)


class OwnOptimizer(GDumb):
    def configure_optimizers(self) -> SGD:
        return SGD(self.parameters(), 1e-9)


def test_what_training_on_the_memory_does_not_use_is_refused_or_noted(
    fit: Fit, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigurationError, match=r"with optimizer=\.\.\., not with an overridden configure_optimizers"):
        fit(lambda: build(OwnOptimizer))
    fit(lambda: build(GDumb, replay_steps=2, lr_milestones=(1,)), max_steps=2)
    assert "schedule of its own; without effect: replay_steps, lr_milestones\n" in capsys.readouterr().err
    fit(lambda: build(GDumb), max_steps=1)
    assert "without effect" not in capsys.readouterr().err
