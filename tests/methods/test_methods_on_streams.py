"""Every method learns every kind of stream, or refuses it with a reason; stops and ranks change nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from bit_for_bit import difference
from every_method import SaveAlways, build
from tiny import Fit, TinySequence, small_net

import ddn_lightning
from ddn_lightning import (
    ER,
    Blurry,
    ConfigurationError,
    DataDistillNet,
    FewShot,
    Finetune,
    GaussianDrift,
    ICaRL,
    LabelNoise,
    LongTail,
    PermutedPixels,
    ReplayMethod,
    RotatedImages,
    Stream,
)
from ddn_lightning.core.start_checks import obstacle_to
from ddn_lightning.data.streams.streams import Streams
from ddn_lightning.names import METHODS, STREAMS, stream_table

DOCS = Path(__file__).parents[2] / "docs" / "streams.md"
SMALL: dict[str, dict[str, Any]] = {"LongTail": {"imbalance": 3}, "FewShot": {"shots": 3}}  # a class has six samples
BLURRED = Blurry(disjoint=0.2, blur=0.5)


def sequence(stream: Stream | list[Stream], **arguments: Any) -> TinySequence:
    return TinySequence(**{"stream": stream, "batch_size": 6, "drop_last": False, "per_class": (6,) * 6, **arguments})


def is_fast(name: str, kind: str) -> bool:
    """Whether a cell is tested by default: ER on all streams, and all methods on two; refusals take no time."""
    return name == "ER" or kind in ("Blurry", "FewShot") or bool(getattr(ddn_lightning, name).needs_disjoint_classes)


CELLS = [
    pytest.param(name, kind, marks=[] if is_fast(name, kind) else [pytest.mark.slow])
    for name in METHODS
    for kind in STREAMS
]


@pytest.mark.parametrize(("name", "kind"), CELLS)
def test_every_method_learns_every_stream_or_says_why_not(fit: Fit, name: str, kind: str) -> None:
    method = getattr(ddn_lightning, name)
    stream = getattr(ddn_lightning, kind)(**SMALL.get(kind, {}))
    obstacle = obstacle_to(method, Streams(stream))
    if obstacle is None:
        learned = fit(lambda: build(method, None, small_net()), sequence(stream))
        assert learned.accuracy_matrix.isnan().equal(torch.ones(3, 3).triu(1).bool())
        assert learned.is_seen_class.all()
        return
    with pytest.raises(ConfigurationError) as refusal:
        fit(lambda: build(method, None, small_net()), sequence(stream))
    assert str(refusal.value) == obstacle
    assert kind in obstacle


def test_the_table_in_the_docs_is_the_one_that_was_tested() -> None:
    assert stream_table() in DOCS.read_text()


@pytest.mark.parametrize("stream", [LabelNoise(), BLURRED, GaussianDrift(0.2), PermutedPixels()], ids=str)
def test_stopping_anywhere_changes_neither_the_stream_nor_the_run(fit: Fit, stream: Stream, tmp_path: Path) -> None:
    make = lambda: build(ER, DataDistillNet)  # noqa: E731
    saving = {"enable_checkpointing": True, "callbacks": [SaveAlways(tmp_path)]}
    expected = fit(make, sequence(stream), **saving)
    ends = ("step3", "step6") if stream.is_by_domain else ("step1", "step4")  # within tasks, and at an end
    for name in ends:
        resumed = fit(make, sequence(stream), ckpt_path=tmp_path / f"{name}.ckpt", seed=9)
        assert difference(dict(resumed.state_dict()), dict(expected.state_dict())) is None
        assert difference(resumed.memory.state_dict(), expected.memory.state_dict()) is None


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("stream", [BLURRED, GaussianDrift(0.2), RotatedImages()], ids=str)
def test_several_ranks_learn_the_stream_of_one(fit: Fit, stream: Stream, ranks: int) -> None:
    def trained(**arguments: Any) -> ReplayMethod:
        return fit(lambda: build(ER, None, small_net()).double(), sequence(stream, batch_size=5), **arguments)

    one, several = trained(), trained(devices=ranks, strategy="ddp_fork")
    for name, parameter in one.named_parameters():
        assert (parameter - several.get_parameter(name)).abs().max() < 1e-9, name
    assert one.accuracy_matrix.nan_to_num().equal(several.accuracy_matrix.nan_to_num())
    assert one.is_seen_class.equal(several.is_seen_class)


def test_without_boundaries_the_classes_seen_are_those_that_have_come(fit: Fit) -> None:
    seen: list[tuple[set[int], set[int]]] = []

    class Watching(Finetune):
        def current_loss(self, current: Any) -> Any:
            self.met = getattr(self, "met", set()) | set(current.labels.tolist())
            seen.append((set(self.is_seen_class.nonzero().flatten().tolist()), set(self.met)))
            return super().current_loss(current)

    fit(lambda: build(Watching, None, small_net()), sequence(GaussianDrift(0.3), batch_size=2))
    assert all(first == second for first, second in seen)
    assert len({len(first) for first, _ in seen}) > 3


@pytest.mark.parametrize(
    ("there", "here", "message"),
    [
        (Blurry(), None, r"stream must be that of the checkpoint, \['Blurry\(disjoint=0.5, blur=0.1\)'\], got \[\]"),
        (None, LongTail(2), r"stream must be that of the checkpoint, \[\], got \[.LongTail"),
        (Blurry(), Blurry(blur=0.2), "stream must be that of the checkpoint.*blur=0.1.*blur=0.2"),
    ],
)
def test_a_checkpoint_of_another_stream_is_refused(
    fit: Fit, there: Stream | None, here: Stream | None, message: str, tmp_path: Path
) -> None:
    fit(lambda: build(Finetune), sequence(there), max_steps=2).trainer.save_checkpoint(tmp_path / "run.ckpt")
    with pytest.raises(ConfigurationError, match=message):
        fit(lambda: build(Finetune), sequence(here), ckpt_path=tmp_path / "run.ckpt")


def test_default_arguments_may_be_given_or_left_out(fit: Fit, tmp_path: Path) -> None:
    stopped = fit(lambda: build(Finetune), sequence(Blurry()), max_steps=2)
    stopped.trainer.save_checkpoint(tmp_path / "run.ckpt")
    resumed = fit(lambda: build(Finetune), sequence(Blurry(disjoint=0.5)), ckpt_path=tmp_path / "run.ckpt")
    assert resumed.tasks_finished == 3


def test_an_evaluation_needs_the_domains_but_not_the_training_stream(
    fit: Fit, make_trainer: Callable[..., Any], tmp_path: Path
) -> None:
    for stream, others, message in (
        (LabelNoise(), None, ""),
        (RotatedImages(), PermutedPixels(), "domains must be that of the checkpoint"),
    ):
        trained = fit(lambda: build(ER), sequence(stream))
        trained.trainer.save_checkpoint(tmp_path / "run.ckpt")
        found = make_trainer().validate(build(ER), sequence(stream), ckpt_path=tmp_path / "run.ckpt", verbose=False)
        assert found[0]["val/average_accuracy"] == pytest.approx(float(trained.accuracy_matrix[-1].mean()), abs=1e-3)
        if not message:
            make_trainer().validate(build(ER), sequence(others), ckpt_path=tmp_path / "run.ckpt", verbose=False)
            continue
        with pytest.raises(ConfigurationError, match=message):
            make_trainer().validate(build(ER), sequence(others), ckpt_path=tmp_path / "run.ckpt", verbose=False)


def test_streams_combine(fit: Fit) -> None:
    streams = [RotatedImages(90), LongTail(3), LabelNoise(0.3), Blurry(0.2, 0.5)]
    data = sequence(streams, num_tasks=4)
    assert fit(lambda: build(ER, DataDistillNet), data).tasks_finished == 4
    assert data.train_plan is not None
    assert len(data.train_plan.counts()) == 4


def test_more_domains_than_classes_can_be_stopped_and_resumed(fit: Fit, tmp_path: Path) -> None:
    data = {"num_tasks": 8, "per_class": (1,) * 6}
    make = lambda: build(ER, DataDistillNet)  # noqa: E731
    stopped = fit(make, sequence(RotatedImages(), **data), max_steps=8)
    stopped.trainer.save_checkpoint(tmp_path / "run.ckpt")
    resumed = fit(make, sequence(RotatedImages(), **data), ckpt_path=tmp_path / "run.ckpt")
    assert (resumed.tasks_finished, resumed.distiller.snapshots) == (8, 8)


def test_the_memory_keeps_the_images_of_the_domains(fit: Fit) -> None:
    data = sequence(PermutedPixels())
    held = fit(lambda: build(ER, None, small_net()), data).memory[torch.arange(10)]
    assert held.tasks is not None
    for image, label, task in zip(held.images, held.labels, held.tasks, strict=True):
        of_task = data.train_set[(data.train_set.tasks == task) & (data.train_set.labels == label)]
        assert (of_task.images == image).flatten(1).all(1).any()


def test_a_long_tail_and_few_shots_leave_exemplars_of_every_class(fit: Fit) -> None:
    learned = fit(lambda: build(ICaRL), sequence([LongTail(6, "ordered"), FewShot(2)]))
    assert isinstance(learned, ICaRL)
    assert learned.exemplars.labels.unique().tolist() == list(range(6))


@pytest.mark.parametrize(
    ("arguments", "recorded"),
    [
        ({"task_sizes": [3, 1, 1, 1]}, {"data.num_tasks": 4}),
        (
            {"stream": [LongTail(3), LabelNoise(0.3)]},
            {"data.stream.0": "ddn_lightning.LongTail", "data.stream.0.imbalance": 3, "data.stream.1.share": 0.3},
        ),
        ({"stream": BLURRED}, {"data.stream": "ddn_lightning.Blurry", "data.stream.blur": 0.5}),
    ],
)
def test_loggers_receive_each_stream_and_the_number_of_tasks(
    fit: Fit, arguments: dict[str, Any], recorded: dict[str, Any]
) -> None:
    found = fit(lambda: build(ER), TinySequence(batch_size=6, **arguments), fast_dev_run=True).hparams_initial
    assert {name: found.get(name) for name in recorded} == recorded
    assert not any(isinstance(value, dict | list) for name, value in found.items() if name.startswith("data.stream"))


@pytest.mark.parametrize("stream", [GaussianDrift(), RotatedImages()], ids=str)
def test_fast_dev_run_and_overfitting_see_every_task_of_a_stream(fit: Fit, stream: Stream) -> None:
    seen: list[tuple[int, tuple[int, ...]]] = []

    class Watching(ER):
        def on_train_batch_start(self, batch: Any, batch_index: int) -> None:
            super().on_train_batch_start(batch, batch_index)
            seen.append((self.task, tuple(batch.labels.tolist())))

    def method() -> Watching:
        return Watching(small_net(), num_classes=6)

    fit(method, sequence(stream, epochs_per_task=2), fast_dev_run=True)
    assert [task for task, _ in seen] == [0, 1, 2]
    seen.clear()
    fit(method, sequence(stream, epochs_per_task=2), overfit_batches=1)
    assert [task for task, _ in seen] == [0, 0, 1, 1, 2, 2]
    assert seen[::2] == seen[1::2]  # the same batch in each epoch of a task
