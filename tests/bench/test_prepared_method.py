import pytest
import torch
from every_method import METHODS

from ddn_lightning import ER, MIR, DataDistillNet, GDumb, ReplayMethod
from ddn_lightning.bench.cost import PartTimes
from ddn_lightning.bench.prepared_method import PARTS, PreparedMethod, Workload

SMALL = Workload(width=2, batch=4, image_size=8, buffer_size=20)


@pytest.mark.parametrize("method", [m for m in METHODS if m.__module__.startswith("ddn_lightning") and m is not GDumb])
def test_a_step_of_every_method_but_gdumb_trains_backbone_and_head(method: type[ReplayMethod]) -> None:
    prepared = PreparedMethod(method, SMALL)
    network = dict(prepared.method.network.named_parameters())
    before = {name: parameter.detach().clone() for name, parameter in network.items()}
    for _ in range(2):
        prepared.step()
    assert prepared.method.tasks_seen == 2
    learned = [name for name, parameter in network.items() if not torch.equal(before[name], parameter)]
    assert any(name.startswith("backbone") for name in learned)
    assert any(name.startswith("head") for name in learned)


def test_large_batches_are_drawn_from_as_many_candidates() -> None:
    assert Workload(width=4, batch=64).method(MIR).candidates == 64


def test_the_memory_is_full_and_mostly_of_the_first_task() -> None:
    memory = PreparedMethod(ER, SMALL).method.memory
    assert len(memory) == 20
    assert len(memory.slots_of([0])) > 10


@pytest.mark.parametrize("distiller", [None, DataDistillNet()])
def test_every_part_of_a_step_takes_time(distiller: DataDistillNet | None) -> None:
    prepared = PreparedMethod(ER, SMALL, distiller)
    ticks = iter(range(10**6))
    times = PartTimes(prepared.step, prepared.parts, lambda: float(next(ticks)))  # a second between two looks at it
    times.watch()
    assert sum(times.seconds.values()) == next(ticks) - 1
    expected = [part for part in PARTS if part != "meta-update" or distiller is not None]
    assert list(times.seconds) == expected
    assert all(seconds > 0 for seconds in times.seconds.values())
