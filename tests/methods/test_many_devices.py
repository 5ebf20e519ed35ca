"""Two ranks with half a batch each equal one rank with the whole batch."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from every_method import COMBINATIONS, SaveAlways, SlowEnding, build
from tiny import Fit, MakeTrainer, TinySequence, small_net
from torch import Tensor, nn

from ddn_lightning import ER, LabelDistiller, ReplayLoss, ReplayMethod, Samples, cross_entropy
from ddn_lightning.distributed import gather_shares

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.mark.slow
def test_spawned_ranks_equal_one(fit: Fit) -> None:
    one = fit(lambda: build(ER, backbone=small_net()))
    two = fit(lambda: build(ER, backbone=small_net()), devices=2, strategy="ddp_spawn")
    assert torch.allclose(one.head.weight, two.head.weight, atol=1e-6)
    assert torch.equal(one.accuracy_matrix.nan_to_num(), two.accuracy_matrix.nan_to_num())


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("batch_size", [5, pytest.param(6, marks=pytest.mark.slow)])  # 5 is uneven
@pytest.mark.parametrize(("method_class", "distiller_class"), COMBINATIONS)
def test_several_ranks_equal_one(
    fit: Fit,
    method_class: type[ReplayMethod],
    distiller_class: type[LabelDistiller] | None,
    batch_size: int,
    ranks: int,
) -> None:
    def trained(**arguments: object) -> ReplayMethod:
        sequence = TinySequence(batch_size=batch_size, drop_last=False)
        return fit(lambda: build(method_class, distiller_class, small_net()).double(), sequence, **arguments)

    assert_equal(trained(), trained(devices=ranks, strategy="ddp_fork"))


class EvenLabels(ER):
    """Rehearses a part of each draw, of another size on each rank."""

    def loss(self, current: Samples, *memory: Samples) -> ReplayLoss:
        even = memory[0].subset(memory[0].labels % 2 == 0)
        return replace(self.current_loss(current), rehearsal=cross_entropy(self.logits_of(even), even))


def test_a_part_of_a_draw_weighs_the_same_on_any_number_of_ranks(fit: Fit) -> None:
    def trained(**arguments: object) -> ReplayMethod:
        sequence = TinySequence(batch_size=5, drop_last=False)
        return fit(lambda: build(EvenLabels, None, small_net(), replay_batch_size=9).double(), sequence, **arguments)

    assert_equal(trained(), trained(devices=2, strategy="ddp_fork"))


def assert_equal(one: ReplayMethod, several: ReplayMethod) -> None:
    for name, parameter in one.named_parameters():
        tolerance = 1e-7 if name.startswith("distiller") else 1e-9  # a forward difference magnifies roundings
        assert (parameter - several.get_parameter(name)).abs().max() < tolerance, name
    assert torch.equal(one.accuracy_matrix.nan_to_num(), several.accuracy_matrix.nan_to_num())
    assert several.tasks_finished == 3


# one method for all in the default run: what differs between methods was compared above
FAST = "ER-DataDistillNet"
RESUMED = [pytest.param(*c.values, id=c.id, marks=[] if c.id == FAST else pytest.mark.slow) for c in COMBINATIONS]


@pytest.mark.parametrize(("method_class", "distiller_class"), RESUMED)
def test_a_checkpoint_of_two_ranks_resumes_with_one_or_four(
    fit: Fit, method_class: type[ReplayMethod], distiller_class: type[LabelDistiller] | None, tmp_path: Path
) -> None:
    def trained(**arguments: object) -> ReplayMethod:
        sequence = TinySequence(batch_size=5, drop_last=False)
        return fit(lambda: build(method_class, distiller_class, small_net()).double(), sequence, **arguments)

    one = trained()
    trained(devices=2, strategy="ddp_fork", enable_checkpointing=True, callbacks=[SaveAlways(tmp_path)])
    for checkpoint, ranks in (("step3", 4), ("step5", 1)):  # within a task, and on its last batch
        resumed = trained(devices=ranks, strategy="ddp_fork", ckpt_path=tmp_path / f"{checkpoint}.ckpt", seed=9)
        assert_equal(one, resumed)


def test_all_ranks_hold_the_same_memory(fit: Fit) -> None:
    class Compare(SlowEnding):
        def on_train_end(self) -> None:
            super().on_train_end()
            held = self.memory[torch.arange(len(self.memory))]
            for field in (held.images, held.labels, held.tasks):
                everyones = gather_shares(field[None], 2)
                assert torch.equal(everyones[0], everyones[1])
            self.endings[9] = self.memory.seen

    method = fit(lambda: build(Compare), TinySequence(batch_size=5), devices=2, strategy="ddp_fork")
    assert method.endings[9] == 60  # 4 batches of 5 in each of 3 tasks


def test_ranks_without_a_seed_share_one_order(make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank starts with another seed, as with DDP without seed_everything."""

    class Watch(SlowEnding):
        def setup(self, stage: str) -> None:
            super().setup(stage)
            self.seen = torch.zeros(72)

        def training_step(self, batch: Samples, batch_index: int) -> dict[str, Tensor]:
            for image in gather_shares(batch.images, batch.total):
                self.seen[(self.sequence.train_set.images == image).flatten(1).all(1)] += 1
            return super().training_step(batch, batch_index)

        def on_train_end(self) -> None:
            super().on_train_end()
            self.endings[9] = int((self.seen == 1).sum())

    class Seeded(TinySequence):
        def prepare_data(self) -> None:
            return

        def setup(self, stage: str) -> None:
            torch.manual_seed(torch.distributed.get_rank())
            super().setup(stage)

    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
    method = build(Watch)
    make_trainer(devices=2, strategy="ddp_fork").fit(method, Seeded(batch_size=6))
    assert method.endings[9] == 72


def test_batch_norm_statistics_agree_after_every_step(fit: Fit) -> None:
    class Compare(SlowEnding):
        checked = 0

        def compare(self) -> None:
            for layer in self.modules():
                if isinstance(layer, nn.BatchNorm2d):
                    for statistic in (layer.running_mean, layer.running_var):
                        everyones = gather_shares(statistic[None], 2)
                        assert torch.equal(everyones[0], everyones[1])
                    self.checked += 1

        def on_train_batch_end(self, *args: object) -> None:
            self.compare()
            super().on_train_batch_end(*args)  # type: ignore[arg-type]
            self.compare()  # at a task's end the network has seen other samples on each rank

        def on_train_end(self) -> None:
            super().on_train_end()
            self.endings[9] = self.checked

    method = fit(lambda: build(Compare), devices=2, strategy="ddp_fork")
    assert method.endings[9] == 24
