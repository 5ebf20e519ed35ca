"""Observations are correct, do not disturb the run, and do not depend on resumes or ranks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from every_method import SaveAlways, build
from lightning.pytorch import Trainer
from tiny import TinySequence, small_net

from ddn_lightning import (
    ER,
    DataDistillNet,
    Finetune,
    ICaRL,
    Observations,
    PermutedPixels,
    RandomLabels,
    ReplayMethod,
    RingBuffer,
    SmallNet,
    TaskCallback,
)
from ddn_lightning.runs.observed import Observed, save_observed
from ddn_lightning.runs.recorded_run import read_run

Fit = Callable[..., ReplayMethod]


def watched(fit: Fit, make: Callable[[], ReplayMethod], **arguments: Any) -> tuple[ReplayMethod, Observed]:
    observations = Observations()
    method = fit(make, callbacks=[observations, *arguments.pop("callbacks", ())], **arguments)
    assert observations.observed is not None
    return method, observations.observed


def assert_same(first: Observed, second: Observed, tolerance: float = 0.0) -> None:
    assert first.tensors().keys() == second.tensors().keys()
    for name, tensor in first.tensors().items():
        other = second.tensors()[name]
        assert torch.allclose(tensor.double(), other.double(), rtol=0, atol=tolerance, equal_nan=True), name


def test_the_last_observations_agree_with_the_method_and_its_memory(fit: Fit) -> None:
    class Labels(TaskCallback):
        """Soft labels of the whole memory one by one, before the task's end changes the distiller."""

        def on_task_end(self, trainer: Trainer, method: ReplayMethod, task: int) -> None:
            held = method.memory[torch.arange(len(method.memory))]
            assert method.distiller is not None
            assert method.transform is not None
            with torch.no_grad():
                probabilities = method(method.transform(held.images)).softmax(1)
                self.found = method.distiller.soft_labels(held, probabilities)

    labels = Labels()
    make = lambda: build(ER, DataDistillNet, small_net())  # noqa: E731
    method, observed = watched(fit, make, callbacks=[labels])
    held = method.memory.labels
    assert observed.composition is not None
    assert observed.composition[-1].tolist() == held.bincount(minlength=6).tolist()
    assert observed.composition[0, 2:].sum() == 0  # the first task has two classes
    assert observed.composition.sum(1).tolist() == [min(24 * task, method.memory.buffer_size) for task in (1, 2, 3)]

    assert observed.soft_labels is not None
    assert observed.label_entropy is not None
    for label in held.unique().tolist():
        expected = labels.found[held == label].mean(0)
        assert torch.allclose(observed.soft_labels[-1, label], expected, atol=1e-5)
    entropy = -(labels.found * labels.found.log()).sum(1).mean()
    assert observed.label_entropy[-1] == pytest.approx(entropy.item(), abs=1e-5)
    assert not observed.label_entropy.isnan().any()

    assert observed.confusion is not None
    assert observed.probability is not None
    right = observed.confusion.diagonal().view(3, 2).sum(1) / observed.confusion.view(3, 12).sum(1)
    assert torch.allclose(100 * right, method.accuracy_matrix[-1])
    assert torch.allclose(observed.probability.sum(1), torch.ones(6))

    assert observed.sample_images is not None
    assert observed.sample_labels is not None
    for image, label in zip(observed.sample_images, observed.sample_labels, strict=True):
        same = (method.memory[torch.arange(len(held))].images == image).flatten(1).all(1)
        assert label in held[same]
    assert len(observed.sample_labels.unique()) == len(held.unique())


def test_exemplars_are_observed_like_any_memory(fit: Fit) -> None:
    method, observed = watched(fit, lambda: build(ICaRL))
    assert method.stored_samples is not None
    assert observed.composition is not None
    assert observed.composition[-1].tolist() == method.stored_samples.labels.bincount(minlength=6).tolist()
    assert observed.sample_labels is not None
    assert set(observed.sample_labels.tolist()) == set(range(6))


def test_the_stream_and_the_tasks_in_memory_are_observed_where_a_class_comes_in_several_tasks(fit: Fit) -> None:
    data = TinySequence(batch_size=6, stream=PermutedPixels())
    method, observed = watched(fit, lambda: build(ER), sequence=data)
    assert observed.stream is not None
    assert observed.stream.equal(torch.full((3, 6), 12))
    assert observed.memory_tasks is not None
    assert observed.memory_tasks[-1].tolist() == method.memory[method.memory.slots].tasks.bincount(minlength=3).tolist()
    plain, observed = watched(fit, lambda: build(ER))
    assert observed.memory_tasks is None  # the classes say it
    assert observed.stream is not None
    assert observed.stream.equal(12 * plain.sequence.is_class_of_task)


def test_without_memory_there_are_only_predictions(fit: Fit) -> None:
    _, observed = watched(fit, lambda: build(Finetune))
    assert observed.tensors().keys() == {"is_class_of_task", "stream", "confusion", "probability"}


@pytest.mark.parametrize("distiller", [RandomLabels, DataDistillNet])
def test_observing_does_not_change_the_run(fit: Fit, distiller: Any) -> None:
    plain = fit(lambda: build(ER, distiller))
    method, _ = watched(fit, lambda: build(ER, distiller))
    for name, parameter in plain.named_parameters():
        assert torch.equal(parameter, method.get_parameter(name)), name
    assert torch.equal(plain.streams["distiller"].get_state(), method.streams["distiller"].get_state())


@pytest.mark.parametrize(
    ("checkpoint", "precision"),
    [("step3", "32-true"), ("step4", "32-true"), ("step12", "bf16-mixed")],  # 4, 12: the last batch of a task
)
def test_a_resumed_run_has_the_same_observations(fit: Fit, checkpoint: str, precision: str, tmp_path: Path) -> None:
    make = lambda: build(ER, DataDistillNet)  # noqa: E731
    saving = {"enable_checkpointing": True, "callbacks": [SaveAlways(tmp_path)]}
    _, expected = watched(fit, make, precision=precision, **saving)
    _, found = watched(fit, make, precision=precision, ckpt_path=tmp_path / f"{checkpoint}.ckpt", seed=9)
    assert_same(found, expected)


class KeepSeen(Observations):
    """Writes what it has seen: objects do not come back from forked processes."""

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        assert self.observed is not None
        save_observed(self.observed, Path(f"rank{trainer.global_rank}"))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("distiller", [DataDistillNet, RandomLabels])
def test_every_rank_observes_what_one_device_does(fit: Fit, distiller: Any) -> None:
    make = lambda: build(ER, distiller, small_net()).double()  # noqa: E731
    sequence = TinySequence(batch_size=5, drop_last=False)
    fit(make, TinySequence(batch_size=5, drop_last=False), callbacks=[KeepSeen()])
    one = read_run(Path("rank0")).observed
    fit(make, sequence, callbacks=[KeepSeen()], devices=2, strategy="ddp_fork")
    assert one is not None
    for rank in (0, 1):
        seen = read_run(Path(f"rank{rank}")).observed
        assert seen is not None
        assert_same(seen, one, tolerance=1e-5)


def test_a_large_memory_is_labelled_in_part_and_evenly(fit: Fit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddn_lightning.callbacks.observations.MOST_LABELLED", 7)
    labelled: list[torch.Tensor] = []

    class Recording(RandomLabels):
        def soft_labels(self, samples: Any, probabilities: Any) -> Any:
            if not self.training:
                labelled.append(samples.labels)
            return super().soft_labels(samples, probabilities)

    method, observed = watched(fit, lambda: build(ER, Recording))
    assert [len(labels) for labels in labelled] == [7, 7, 7]  # one forward pass per task
    size = len(method.memory)
    assert labelled[-1].equal(method.memory.labels[torch.linspace(0, size - 1, 7, dtype=torch.float64).long()])
    assert observed.sample_labels is not None
    assert sorted(observed.sample_labels.tolist()) == sorted(labelled[-1].tolist())


def test_images_that_are_neither_grey_nor_colour_are_observed_without_pictures(fit: Fit, tmp_path: Path) -> None:
    class FourChannels(TinySequence):
        mean, std = (0.5,) * 4, (0.25,) * 4

        def load(self, train: bool) -> tuple[torch.Tensor, torch.Tensor]:
            images, labels = super().load(train)
            return images.repeat(1, 4, 1, 1), labels

    make = lambda: ER(SmallNet(in_channels=4, width=4), num_classes=6, buffer_size=12)  # noqa: E731
    _, observed = watched(fit, make, sequence=FourChannels(batch_size=6))
    assert observed.sample_images is None
    save_observed(observed, tmp_path)
    loaded = read_run(tmp_path).observed
    assert loaded is not None
    assert loaded.composition.equal(observed.composition)


def test_a_memory_with_empty_slots_is_observed_where_it_holds_samples(fit: Fit) -> None:
    class OnlyFirst(TaskCallback):
        """Keeps what was observed after the first task, whose classes, 4 and 2, have the last and a middle part."""

        def on_task_end(self, trainer: Trainer, method: ReplayMethod, task: int) -> None:
            if task == 0:
                self.held = method.memory[method.memory.slots]
                (observations,) = [one for one in trainer.callbacks if isinstance(one, Observations)]
                self.observed = observations.observed

    noted = OnlyFirst()
    make = lambda: build(ER, DataDistillNet, memory=RingBuffer(), buffer_size=12)  # noqa: E731
    fit(make, TinySequence(class_order=[4, 2, 0, 1, 3, 5], batch_size=6), callbacks=[Observations(), noted])
    observed = noted.observed
    assert noted.held.slots.tolist() != list(range(len(noted.held)))
    assert set(observed.sample_labels.tolist()) == {2, 4}
    stored = {image.numpy().tobytes() for image in noted.held.images}
    assert {image.numpy().tobytes() for image in observed.sample_images} <= stored
    means = observed.soft_labels[0]
    assert [row for row in range(6) if not means[row].isnan().any()] == [2, 4]
