"""No test here sees a GPU. These see that a GPU would refuse nothing, and where the host would wait for it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from every_method import COMBINATIONS, SaveAlways, build
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.strategies import SingleDeviceStrategy
from stand_in_gpu import DEVICE, DeviceMixError, StandInAccelerator, Watch, stand_in_gpu
from tiny import TinySequence, random_samples
from torch import Tensor, distributed
from torch.testing._internal.distributed.fake_pg import FakeStore

from ddn_lightning import (
    ER,
    ERACE,
    GSS,
    LUCIR,
    MIR,
    DataDistillNet,
    DERPlusPlus,
    GDumb,
    ICaRL,
    LabelDistiller,
    LearnedLabels,
    LoDM,
    Mnemonics,
    ReplayMethod,
    Samples,
)
from ddn_lightning.callbacks.observations import Observations
from ddn_lightning.distill.replay_loss import ReplayLoss
from ddn_lightning.samples import gathered

Distiller = Callable[[], LabelDistiller] | None

# where the host waits for the device within a step, and why; in the steps of any other method it never does
WAITS: dict[type[ReplayMethod], dict[str, str]] = {
    LoDM: {
        "memory/low_rank_memory.py:LowRankMemory.add": "a batch's classes decide how many synthetic images there are"
    },
    GDumb: {
        "memory/class_balanced_reservoir.py:ClassBalancedReservoir.choose": "a batch's classes decide what is kept"
    },
    MIR: {"methods/mir.py:MIR.retrieve": "scores on the device select slots on the host"},
    GSS: {"memory/gradient_selection.py:GradientSelection._scores_of": "scores on the device select slots on the host"},
}
WAITS_WHEN_LOGGING = {
    "distill/bilevel_distiller.py:BilevelDistiller.terms_to_log": "how much of a label lies on the classes of a mask",
    "core/replay_method.py:ReplayMethod.training_step": "the loss, for the progress bar",
    "callbacks/divergence_guard.py:_first_on_any_rank": "whether all losses since the last look are finite",
    "lightning": "all else that is logged, for the loggers",
}


class StepBegins(Callback):
    """Notes at each step how often the host has waited before it."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.waits: list[int] = []

    def on_train_batch_start(self, *_: Any) -> None:
        self.waits.append(len(self.watch.waits))


def train(
    method_class: type[ReplayMethod],
    distiller: Distiller = None,
    ckpt_path: Path | None = None,
    steps: int = 2,
    **more: Any,
) -> Trainer:
    """Learn three tasks."""
    seed_everything(0, verbose=False)
    quiet: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    quiet |= {"logger": False, "log_every_n_steps": 0, "max_epochs": -1, "num_sanity_val_steps": 0}
    trainer = Trainer(**{**quiet, "callbacks": [Observations()], **more})
    sequence = TinySequence(batch_size=6, per_class=(3 * steps,) * 6)
    trainer.fit(build(method_class, distiller), sequence, ckpt_path=ckpt_path)
    return trainer


def on_the_gpu() -> SingleDeviceStrategy:
    return SingleDeviceStrategy(DEVICE, StandInAccelerator())


def outcome(trainer: Trainer) -> list[Any]:
    """All that was learned and is remembered."""
    method = trainer.lightning_module
    assert isinstance(method, ReplayMethod)
    return [method.state_dict(), method.memory.state_dict()]


def assert_equal(found: list[Any], expected: list[Any]) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize(("method_class", "distiller"), COMBINATIONS)
def test_a_gpu_refuses_nothing_and_no_step_waits_for_it_without_a_reason(
    method_class: type[ReplayMethod], distiller: Distiller
) -> None:
    expected = outcome(train(method_class, distiller, accelerator="cpu"))
    with stand_in_gpu() as watch:
        assert_equal(outcome(train(method_class, distiller, strategy=on_the_gpu())), expected)
    assert watch.places_in_steps() == WAITS.get(method_class, {}).keys()


@pytest.mark.parametrize("lookahead", ["exact", "delayed"])
def test_only_a_step_that_is_logged_waits(lookahead: str) -> None:
    distiller: Any = partial(DataDistillNet, lookahead=lookahead)
    with stand_in_gpu() as watch:
        begins = StepBegins(watch)
        more = {"log_every_n_steps": 2, "logger": DummyLogger(), "callbacks": [begins]}
        train(ER, distiller, strategy=on_the_gpu(), steps=3, **more)
    ends = [*begins.waits[1:], None]
    waits = [watch.places_in_steps(begin, end) for begin, end in zip(begins.waits, ends, strict=True)]
    assert waits[::2] == 5 * [set()]
    assert set.union(*waits[1::2]) == WAITS_WHEN_LOGGING.keys()


@contextmanager
def two_ranks() -> Iterator[None]:
    """This process is the first of two; the other one always has the same to say."""
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        yield
    finally:
        distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore:It is recommended to use .*sync_dist")  # it is, but Lightning knows of one rank
@pytest.mark.parametrize(
    ("method_class", "distiller"),
    [(ER, LearnedLabels), (DERPlusPlus, None), (ERACE, DataDistillNet), (LoDM, None), (LUCIR, None)],
)
def test_one_of_two_gpus_refuses_nothing_either(method_class: type[ReplayMethod], distiller: Distiller) -> None:
    with stand_in_gpu() as watch, two_ranks():
        train(method_class, distiller, strategy=on_the_gpu())
    assert watch.places_in_steps() == WAITS.get(method_class, {}).keys()


def test_tasks_that_no_loader_of_ours_has_noted_are_gathered() -> None:
    samples = random_samples(3)
    share, whole_of_both = replace(samples, global_size=6), samples[torch.arange(3).repeat_interleave(2)]
    with stand_in_gpu(), two_ranks():
        whole = gathered(share.to(DEVICE), logits=None)
        assert_equal([whole.labels.cpu(), whole.tasks], [whole_of_both.labels, whole_of_both.tasks])


@pytest.mark.parametrize(
    ("method_class", "distiller"), [(ER, LearnedLabels), (DERPlusPlus, None), (LoDM, None), (ICaRL, None)]
)
def test_a_gpu_goes_on_from_a_checkpoint(
    tmp_path: Path, method_class: type[ReplayMethod], distiller: Distiller
) -> None:
    saving = {"callbacks": [Observations(), SaveAlways(tmp_path)], "enable_checkpointing": True}
    undisturbed = outcome(train(method_class, distiller, accelerator="cpu", **saving))
    for step in (2, 3):  # the last of the first task, whose end is still to come, and the first of the second
        with stand_in_gpu():
            resumed = train(method_class, distiller, tmp_path / f"step{step}.ckpt", strategy=on_the_gpu())
            assert_equal(outcome(resumed), undisturbed)


@pytest.mark.parametrize(("method_class", "distiller"), [(ER, LearnedLabels), (Mnemonics, None)])
def test_a_gpu_ends_the_task_that_a_checkpoint_has_left_unended(
    tmp_path: Path, method_class: type[ReplayMethod], distiller: Distiller
) -> None:
    stopped = tmp_path / "stopped.ckpt"
    train(method_class, distiller, accelerator="cpu", max_steps=3).save_checkpoint(stopped)
    expected = outcome(train(method_class, distiller, stopped, accelerator="cpu"))
    with stand_in_gpu():
        assert_equal(outcome(train(method_class, distiller, stopped, strategy=on_the_gpu())), expected)


def test_samples_are_selected_by_an_index_from_anywhere() -> None:
    samples = random_samples(6)
    is_chosen = torch.tensor([True, False, True, True, False, False])
    with stand_in_gpu():
        for chosen in (samples[is_chosen.to(DEVICE)], samples.to(DEVICE)[is_chosen.to(DEVICE)]):
            assert_equal([chosen.labels.cpu(), chosen.tasks], [samples.labels[is_chosen], samples[is_chosen].tasks])
        found = samples.to(DEVICE)[is_chosen.nonzero().squeeze(1)]
        assert (found.images.device, found.labels.device, found.tasks.device.type) == (DEVICE, DEVICE, "cpu")


class Peeking(ER):
    """Asks for a value in each step."""

    def loss(self, current: Samples, *memory: Samples) -> ReplayLoss:
        found = super().loss(current, *memory)
        assert found.other.item() > 0
        return found


class Mixing(ER):
    """Multiplies what is on the device by what is on the host."""

    def loss(self, current: Samples, *memory: Samples) -> ReplayLoss:
        assert current.tasks is not None
        assert len(current.tasks * current.labels)
        return super().loss(current, *memory)


def test_the_audit_sees_a_value_that_a_step_asks_for() -> None:
    with stand_in_gpu() as watch:
        train(Peeking, strategy=on_the_gpu())
    assert {wait.what for wait in watch.waits if wait.in_step} == {"_local_scalar_dense"}


def test_the_audit_sees_tensors_of_two_devices() -> None:
    with stand_in_gpu(), pytest.raises(DeviceMixError, match=r"mul.* of host \(6,\), device \(6,\)"):
        train(Mixing, strategy=on_the_gpu())


HOST = torch.arange(3)


@pytest.mark.parametrize(
    "operation",
    [
        lambda device: HOST + device,
        lambda device: HOST[device],
        lambda device: HOST[device == 1],
        lambda device: torch.cat([HOST, device]),
        lambda device: HOST.gather(0, device),
        lambda device: device.index_put((device,), HOST),
        lambda device: torch.zeros(()).add_(device.sum()),
        lambda device: torch.stack([HOST[0], device[0]]),
    ],
)
def test_a_gpu_refuses(operation: Callable[[Tensor], object]) -> None:
    with stand_in_gpu(), pytest.raises(DeviceMixError):
        operation(HOST.to(DEVICE))


@pytest.mark.parametrize(
    ("what", "operation"),
    [
        ("_local_scalar_dense", lambda device: device[0].item()),
        ("_local_scalar_dense", lambda device: bool(device.sum() > 0)),
        ("copy to the host", lambda device: device.cpu()),
        ("copy to the host", lambda device: device.tolist()),
        ("copy to the host", lambda device: torch.zeros(3).copy_(device)),
        ("copy to the device", lambda device: HOST.to(DEVICE)),
        ("copy to the device", lambda device: torch.tensor([1.0], device=DEVICE)),
        ("copy to the device", lambda device: device.copy_(HOST)),
        ("index from the host", lambda device: device[HOST]),
        ("places of a mask", lambda device: device[device > 0]),
        ("nonzero", lambda device: device.nonzero()),
        ("_unique2", lambda device: torch.unique(device)),
        ("bincount", lambda device: device.bincount()),
        ("equal", lambda device: torch.equal(device, device)),
    ],
)
def test_the_host_waits_for(what: str, operation: Callable[[Tensor], object]) -> None:
    with stand_in_gpu() as watch:
        device = HOST.to(DEVICE, non_blocking=True)
        operation(device)
    assert [wait.what for wait in watch.waits] == [what]


@pytest.mark.parametrize(
    "operation",
    [
        lambda device: device * torch.tensor(2.0),
        lambda device: device.masked_fill_(device > 0, 0),
        lambda device: device.index_put_((device > 0,), torch.tensor(1)),
        lambda device: device[HOST.to(DEVICE, non_blocking=True)],
        lambda device: torch.nn.functional.one_hot(device, 3),
        lambda device: torch.where(device > 0, device, 0),
        lambda device: device.new_zeros(3, device="cpu"),
    ],
)
def test_nobody_waits_for(operation: Callable[[Tensor], object]) -> None:
    with stand_in_gpu() as watch:
        operation(HOST.to(DEVICE, non_blocking=True))
    assert watch.waits == []
