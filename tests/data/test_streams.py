"""Streams: each sample of the plan once per epoch, in the declared proportions, on every rank and after stops."""

import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from lightning.pytorch import Trainer
from tiny import MakeTrainer, TinySequence, small_net

from ddn_lightning import (
    ER,
    Blurry,
    ConfigurationError,
    Corruptions,
    FewShot,
    GaussianDrift,
    LabelNoise,
    LongTail,
    PermutedPixels,
    Plan,
    ReplayMethod,
    ReservoirBuffer,
    RotatedImages,
    Samples,
    ShiftedClasses,
    Stream,
    load,
)
from ddn_lightning.data.class_order import class_matrix
from ddn_lightning.data.plan import random_rank
from ddn_lightning.data.streams.streams import Streams
from ddn_lightning.random_streams import generator_for

Fit = Callable[..., ReplayMethod]
KINDS: list[Stream] = [
    LongTail(imbalance=5),
    LongTail(imbalance=5, order="ordered"),
    FewShot(shots=3),
    LabelNoise(share=0.3),
    LabelNoise(share=0.3, kind="asymmetric"),
    Blurry(disjoint=0.3, blur=0.5),
    GaussianDrift(width=0.2),
    RotatedImages(),
]
SIZES = some.lists(some.integers(2, 4), min_size=1, max_size=4)


def a_plan(sizes: list[int], per_class: int = 20, is_by_domain: bool = False) -> Plan:
    order = torch.randperm(sum(sizes))
    matrix = class_matrix(order, len(sizes) if is_by_domain else sizes, is_by_domain, "test")
    labels = torch.arange(len(order)).repeat(per_class)
    return Plan(torch.arange(len(labels)), labels, matrix.int().argmax(0)[labels], matrix, order)


def changed(stream: Stream, plan: Plan, seed: int = 0) -> Plan:
    return Streams(stream, seed).change(plan, train=True)


def served(sequence: TinySequence, fit_trainer: Trainer, epoch: int) -> torch.Tensor:
    """The image sums that an epoch's loader serves."""
    fit_trainer.fit_loop.epoch_progress.current.processed = epoch
    sequence.trainer = fit_trainer
    return torch.cat([batch.images.double().flatten(1).sum(1) for batch in sequence.train_dataloader()])


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_sample_of_the_plan_comes_once_per_epoch(kind: Stream, make_trainer: Callable[..., Trainer]) -> None:
    sequence = TinySequence(stream=kind, batch_size=5, epochs_per_task=2)
    sequence.setup("fit")
    plan, trainer = sequence.train_plan, make_trainer()
    assert plan is not None
    for epoch in range(6):
        expected = sequence.train_set[plan.tasks == epoch // 2].images.double().flatten(1).sum(1)
        assert served(sequence, trainer, epoch).sort().values.equal(expected.sort().values)
    assert len(plan) == plan.counts().sum() == plan.timeline().sum()


@settings(max_examples=25, deadline=None)
@given(SIZES, some.integers(0, 9), some.sampled_from(KINDS))
def test_the_same_seed_gives_the_same_plan_and_only_the_stream_s_own(sizes: list[int], seed: int, kind: Stream) -> None:
    plan = a_plan(sizes, is_by_domain=kind.is_by_domain)
    first = changed(kind, plan, seed)
    torch.manual_seed(99)  # what else a run draws does not matter
    assert first.checksum == changed(kind, plan, seed).checksum
    if not kind.is_by_domain:
        both = Streams([kind, *([] if isinstance(kind, FewShot) else [FewShot(2)])], seed)
        assert set(both.change(plan, True).samples.tolist()) <= set(first.samples.tolist())


@settings(max_examples=25, deadline=None)
@given(SIZES, some.floats(1, 50), some.sampled_from(["ordered", "shuffled"]))
def test_a_long_tail_has_the_declared_sizes(sizes: list[int], imbalance: float, order: Any) -> None:
    plan = a_plan(sizes)
    kept = changed(LongTail(imbalance, order), plan)
    num_classes = sum(sizes)
    expected = [max(round(20 * imbalance ** (-k / (num_classes - 1))), 1) for k in range(num_classes)]
    counts = kept.labels.bincount(minlength=num_classes)
    assert counts.sort(descending=True).values.tolist() == expected
    assert len(kept.samples.unique()) == len(kept)
    if order == "ordered":
        assert counts[plan.class_order].tolist() == expected


@settings(max_examples=25, deadline=None)
@given(SIZES, some.integers(1, 30), some.integers(1, 3))
def test_few_shots_come_from_the_declared_task_on(sizes: list[int], shots: int, from_task: int) -> None:
    plan = a_plan(sizes)
    counts = changed(FewShot(shots, from_task), plan).counts()
    late = torch.arange(len(sizes))[:, None] + 1 >= from_task
    assert counts.equal(torch.where(plan.is_class_of_task, torch.where(late, min(shots, 20), 20), 0))


@settings(max_examples=25, deadline=None)
@given(SIZES, some.floats(0, 1), some.sampled_from(["symmetric", "asymmetric"]))
def test_wrong_labels_have_the_declared_share_and_are_of_the_same_task(
    sizes: list[int], share: float, kind: Any
) -> None:
    plan = a_plan(sizes)
    noisy = changed(LabelNoise(share, kind), plan)
    is_wrong = noisy.labels != plan.labels
    assert plan.labels[is_wrong].bincount(minlength=sum(sizes)).tolist() == [round(20 * share)] * sum(sizes)
    assert plan.is_class_of_task[noisy.tasks, noisy.labels].all()
    assert noisy.samples.equal(plan.samples)
    if kind == "asymmetric":
        pairs = set(zip(plan.labels[is_wrong].tolist(), noisy.labels[is_wrong].tolist(), strict=True))
        assert len(pairs) == len({label for label, _ in pairs})  # a class is always taken for the same other


def test_the_right_label_never_reaches_training() -> None:
    clean, noisy = TinySequence(), TinySequence(stream=LabelNoise(1.0))
    for sequence in (clean, noisy):
        sequence.setup("fit")
    assert not (clean.train_set.labels == noisy.train_set.labels).any()
    assert not (noisy.train_set[:].labels == clean.train_set.labels).any()
    assert clean.test_set.labels.equal(noisy.test_set.labels)


@settings(max_examples=25, deadline=None)
@given(some.lists(some.integers(2, 4), min_size=2, max_size=4), some.floats(0, 1), some.floats(0, 1))
def test_blurry_tasks_move_the_declared_share_of_the_declared_classes(
    sizes: list[int], disjoint: float, blur: float
) -> None:
    plan = a_plan(sizes)
    blurred = changed(Blurry(disjoint, blur), plan)
    moved = plan.labels[blurred.tasks != plan.tasks].bincount(minlength=sum(sizes))
    number, share = sum(sizes) - round(disjoint * sum(sizes)), round(20 * blur)
    assert moved.sort().values.tolist() == [0] * (sum(sizes) - number) + [share] * number
    away = blurred.counts().masked_select(~plan.is_class_of_task)
    assert away.max() <= -(-share // (len(sizes) - 1))  # evenly over the other tasks


@settings(max_examples=25, deadline=None)
@given(SIZES, some.floats(0, 0.5))
def test_a_drift_keeps_the_sizes_of_the_tasks_and_the_order_of_the_classes(sizes: list[int], width: float) -> None:
    plan = a_plan(sizes)
    drift = changed(GaussianDrift(width), plan)
    assert drift.is_ordered
    assert sorted(drift.samples.tolist()) == plan.samples.tolist()
    assert drift.tasks.bincount().equal(plan.tasks.bincount())
    if width == 0:
        assert drift.counts().equal(plan.counts())
        assert drift.labels.unique_consecutive().tolist() == plan.class_order.tolist()


def test_a_drift_is_served_in_its_order_and_drawn_finer_than_tasks(make_trainer: Callable[..., Trainer]) -> None:
    sequence = TinySequence(stream=GaussianDrift(0.1), batch_size=5, drop_last=False)
    sequence.setup("fit")
    plan = sequence.train_plan
    assert plan is not None
    first = sequence.train_set[plan.tasks == 0].images.double().flatten(1).sum(1)
    assert served(sequence, make_trainer(), 0).equal(first)
    assert plan.timeline().shape == (30, 6)


@pytest.mark.parametrize("kind", [RotatedImages(), PermutedPixels(), Corruptions(), Corruptions("blur")], ids=str)
def test_domains_have_all_samples_with_images_of_their_own(kind: Stream) -> None:
    sequence, clean = TinySequence(num_tasks=4, stream=kind), TinySequence()
    sequence.setup("fit")
    clean.setup("fit")
    for found, raw in ((sequence.train_set, clean.train_set), (sequence.test_set, clean.test_set)):
        assert len(found) == 4 * len(raw)
        assert found.tasks is not None
        domains = [found[found.tasks == task] for task in range(4)]
        assert all(domain.labels.equal(raw.labels) for domain in domains)
        assert domains[0].images.equal(raw.images)
        assert all(not domains[0].images.equal(domain.images) for domain in domains[1:])
        mixed = found[torch.arange(len(found)).view(4, -1).T.flatten()]  # a batch of several domains
        assert mixed.images[3::4].equal(domains[3].images)
        assert found.images.equal(torch.cat([domain.images for domain in domains]))
    assert sequence.is_class_of_task.all()


def test_new_classes_come_in_the_images_of_their_domain() -> None:
    shifted = TinySequence(task_sizes=[3, 2, 1], class_order_seed=1, stream=ShiftedClasses(RotatedImages(180)))
    plain = TinySequence(task_sizes=[3, 2, 1], class_order_seed=1)
    for sequence in (shifted, plain):
        sequence.setup("fit")
    assert shifted.stream.has_disjoint_classes
    assert not shifted.stream.is_by_domain
    for found, raw in ((shifted.train_set, plain.train_set), (shifted.test_set, plain.test_set)):
        assert raw.tasks is not None
        turned = {0: raw.images, 1: raw.images.rot90(1, (2, 3)), 2: raw.images.flip(2, 3)}
        for task, expected in turned.items():
            mine = raw.tasks == task
            other = raw.images.rot90(-1, (2, 3))[mine]
            assert found[mine].images.equal(expected[mine]) or (task == 1 and found[mine].images.equal(other))
        assert found.labels.equal(raw.labels)


def test_new_classes_keep_the_images_of_their_domain_where_they_blur() -> None:
    alone = TinySequence(stream=ShiftedClasses(PermutedPixels()))
    both = TinySequence(stream=[ShiftedClasses(PermutedPixels()), Blurry(disjoint=0, blur=0.5)])
    alone.setup("fit")
    both.setup("fit")
    known = dict(zip(alone.train_plan.samples.tolist(), alone.train_set[:].images, strict=True))
    plan = both.train_plan
    assert (plan.domains != plan.tasks).any()
    for sample, image in zip(plan.samples.tolist(), both.train_set[:].images, strict=True):
        assert image.equal(known[sample])


def test_an_evaluation_needs_the_domains_of_new_classes(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    method = ER(small_net(), num_classes=6, buffer_size=10, replay_batch_size=5)
    trainer = make_trainer()
    trainer.fit(method, TinySequence(batch_size=6, stream=ShiftedClasses(PermutedPixels())))
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    with pytest.raises(ConfigurationError, match="domains"):
        make_trainer().test(load(tmp_path / "a.ckpt"), TinySequence(), ckpt_path=tmp_path / "a.ckpt", verbose=False)


@pytest.mark.parametrize("other", [PermutedPixels(), ShiftedClasses()])
def test_two_kinds_of_domains_are_refused(other: Stream) -> None:
    with pytest.raises(ConfigurationError, match="one stream of domains must come first|each kind once"):
        TinySequence(stream=[ShiftedClasses(), other])


@pytest.mark.parametrize("moving", [GaussianDrift(width=0.3), Blurry(disjoint=0, blur=0.5)], ids=str)
def test_domains_drift_and_blur_with_their_images(moving: Stream) -> None:
    alone, both = (
        TinySequence(num_tasks=3, stream=streams) for streams in (PermutedPixels(), [PermutedPixels(), moving])
    )
    alone.setup("fit")
    both.setup("fit")
    first, plan, found = alone.train_plan, both.train_plan, both.train_set[:]
    assert sorted(zip(plan.samples.tolist(), plan.domains.tolist(), strict=True)) == sorted(
        (sample, domain) for domain in range(3) for sample in range(len(alone.train_set) // 3)
    )
    of_entry = {
        (int(s), int(d)): image
        for s, d, image in zip(first.samples, first.tasks, alone.train_set[:].images, strict=True)
    }
    assert all(
        image.equal(of_entry[int(sample), int(domain)])
        for sample, domain, image in zip(plan.samples, plan.domains, found.images, strict=True)
    )
    assert (plan.domains != plan.tasks).double().mean() > 0.2
    assert plan.checksum != replace(plan, domains=plan.domains.roll(1)).checksum
    assert found.tasks.equal(plan.tasks)


def test_rotations_and_permutations_are_exact() -> None:
    images = torch.randint(256, (3, 2, 8, 8), dtype=torch.uint8)
    turned = RotatedImages(180).change_images(images, 2, 3, torch.Generator())
    assert turned.equal(images.flip(2, 3))
    quarter = RotatedImages(180).change_images(images, 1, 3, torch.Generator())
    assert quarter.equal(images.rot90(1, (2, 3))) or quarter.equal(images.rot90(-1, (2, 3)))
    permuted = PermutedPixels().change_images(images, 1, 3, torch.Generator().manual_seed(1))
    assert permuted.flatten(2).sort().values.equal(images.flatten(2).sort().values)


@settings(max_examples=10, deadline=None)
@given(some.sampled_from(KINDS[:-1]), some.integers(0, 50))
def test_the_memory_is_an_even_sample_of_what_the_stream_offered(kind: Stream, seed: int) -> None:
    plan = changed(kind, a_plan([3, 3], per_class=100), seed)
    kept = torch.zeros(len(plan))
    for repeat in range(40):
        buffer = ReservoirBuffer(buffer_size=40, seed=1000 * seed + repeat)
        rows = torch.arange(len(plan))
        for part in rows.split(50):
            buffer.add(Samples(torch.zeros(len(part), 1, 1, 1, dtype=torch.uint8), part, tasks=plan.tasks[part]))
        kept[buffer.labels] += 1
    halves = torch.stack([part.mean() for part in kept.tensor_split(2)])
    assert halves.sub(kept.mean()).abs().max() < 0.25 * kept.mean()


@pytest.mark.parametrize(
    ("streams", "message"),
    [
        ([Blurry(), GaussianDrift()], "one of Blurry, GaussianDrift: each moves samples between tasks"),
        ([LongTail(), LongTail()], "each kind once, got LongTail, LongTail"),
        ([LongTail(), RotatedImages()], "must not have RotatedImages here.*must come first"),
        ([RotatedImages(), PermutedPixels()], "must not have PermutedPixels here"),
    ],
)
def test_streams_that_contradict_each_other_are_refused(streams: list[Stream], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        TinySequence(stream=streams)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LongTail(0.5), "imbalance must be 1 or more, got 0.5"),
        (lambda: FewShot(0), "shots must be positive, got 0"),
        (lambda: LabelNoise(1.5), "share must be between 0 and 1, got 1.5"),
        (lambda: Blurry(blur=-1), "blur must be between 0 and 1, got -1"),
        (lambda: GaussianDrift(-0.1), "width must be zero or positive, got -0.1"),
        (lambda: TinySequence(task_sizes=[3, 3], stream=RotatedImages()), "task_sizes must be left out"),
    ],
)
def test_wrong_arguments_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_noise_needs_two_classes_to_confuse() -> None:
    with pytest.raises(ConfigurationError, match="two classes in every task, but task 2 has one"):
        TinySequence(task_sizes=[3, 1, 2], stream=LabelNoise()).setup("fit")


def test_a_task_that_a_stream_makes_smaller_than_a_batch_is_refused_before_training(fit: Fit) -> None:
    batches: list[int] = []

    class Counting(ER):
        def on_train_batch_start(self, batch: Samples, batch_index: int) -> None:
            batches.append(batch_index)
            super().on_train_batch_start(batch, batch_index)

    with pytest.raises(ConfigurationError, match="task 2 has 4 samples, fewer than one batch of batch_size = 6"):
        fit(lambda: Counting(small_net(), num_classes=6), TinySequence(batch_size=6, stream=FewShot(2)))
    assert not batches


def test_the_run_s_seed_changes_the_shuffle_but_not_the_stream() -> None:
    def checksum(run_seed: int, **arguments: Any) -> str:
        torch.manual_seed(run_seed)
        sequence = TinySequence(stream=Blurry(blur=0.5), **arguments)
        sequence.setup("fit")
        assert sequence.train_plan is not None
        return sequence.train_plan.checksum

    assert checksum(1) == checksum(2)
    assert checksum(1) != checksum(1, stream_seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS[:-1], ids=str)
def test_ten_million_samples_are_planned_in_seconds_and_bounded_memory(kind: Stream) -> None:
    plan = a_plan([10] * 10, per_class=100_000)
    started = time.process_time()
    assert len(changed(kind, plan)) <= len(plan) == 10**7
    assert time.process_time() - started < 20


def test_a_plan_takes_a_few_numbers_per_sample() -> None:
    plan = a_plan([10] * 2, per_class=1000)
    tracemalloc.start()
    for kind in KINDS:
        changed(kind, plan)
    python_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert python_bytes < 2**20  # no Python object per sample
    assert {column.dtype for column in (plan.samples, plan.labels, plan.tasks)} == {torch.int64}


def test_without_a_stream_the_batches_are_those_of_version_0_1(make_trainer: Callable[..., Trainer]) -> None:
    sequence = TinySequence(class_order_seed=1, epochs_per_task=2, batch_size=5)
    sequence.setup("fit")
    images, labels = sequence.load(train=True)
    for epoch in range(6):
        data = images[torch.isin(labels, sequence.task_classes[epoch // 2])].double().flatten(1).sum(1)
        generator = generator_for(torch.initial_seed(), f"order of epoch {epoch}")
        assert served(sequence, make_trainer(), epoch).equal(data[torch.randperm(len(data), generator=generator)])


def test_random_ranks_number_each_group_from_zero() -> None:
    groups = torch.randint(5, (200,))
    rank = random_rank(groups, torch.Generator().manual_seed(0))
    for group in range(5):
        assert rank[groups == group].sort().values.tolist() == list(range(int((groups == group).sum())))
    assert not rank[groups == 0].equal(rank[groups == 0].sort().values)


def test_a_stream_of_one_s_own_is_a_few_lines(fit: Fit) -> None:
    class Backwards(Stream):
        has_disjoint_classes = True

        def change(self, plan: Plan, generator: torch.Generator) -> Plan:
            return replace(plan, tasks=plan.tasks.flip(0))

    sequence = TinySequence(stream=Backwards(), batch_size=6)
    assert fit(lambda: ER(small_net(), num_classes=6), sequence).tasks_finished == 3


@pytest.mark.parametrize("domains", [torch.zeros(5), torch.full((72,), 3), torch.full((72,), -1)])
def test_wrong_domains_of_one_s_own_data_are_refused(domains: torch.Tensor) -> None:
    class Own(TinySequence):
        has_domains = True

        def load_tasks(self, train: bool) -> torch.Tensor:
            return domains

    with pytest.raises(ConfigurationError, match="load_tasks must return a task from 0 to 2 for each of 72 images"):
        Own().setup("fit")
