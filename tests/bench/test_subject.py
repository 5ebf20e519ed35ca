import pytest
import torch
from every_method import METHODS

from ddn_lightning import ER, DataDistillNet, ReplayMethod
from ddn_lightning.bench import look_aheads
from ddn_lightning.bench.look_aheads import UnrolledNet
from ddn_lightning.bench.peak_memory import peak_memory
from ddn_lightning.bench.step_parts import PARTS, StepParts
from ddn_lightning.bench.subject import Subject, Workload

SMALL = Workload(width=2, batch=4, image_size=8, buffer_size=20)


@pytest.mark.parametrize("method", [m for m in METHODS if m.__module__.startswith("ddn_lightning")])
def test_steps_of_every_method_can_be_taken(method: type[ReplayMethod]) -> None:
    subject = Subject(method, SMALL)
    network = dict(subject.method.network.named_parameters())
    before = {name: parameter.detach().clone() for name, parameter in network.items()}
    for _ in range(2):
        subject.step()
    assert subject.method.tasks_seen == 2
    learned = [name for name, parameter in network.items() if not torch.equal(before[name], parameter)]
    assert any(name.startswith("backbone") for name in learned)
    assert any(name.startswith("head") for name in learned)


def test_the_memory_is_full_and_mostly_of_the_first_task() -> None:
    memory = Subject(ER, SMALL).method.memory
    assert len(memory) == 20
    assert len(memory.slots_of([0])) > 10


@pytest.mark.parametrize("distiller", [None, DataDistillNet()])
def test_the_parts_are_the_whole(distiller: DataDistillNet | None) -> None:
    subject = Subject(ER, SMALL, distiller)
    ticks = iter(range(10**6))
    parts = StepParts(subject, lambda: float(next(ticks)))  # a second between two looks at the clock
    parts.watch_step()
    assert sum(parts.seconds.values()) == next(ticks) - 1
    assert (parts.seconds["meta-update"] > 0) == (distiller is not None)
    assert all(parts.seconds[part] > 0 for part in PARTS if part != "meta-update")
    assert "augment" not in vars(subject.method)  # nothing is left wrapped


def test_exact_is_the_unrolled_gradient_and_the_cheaper_modes_are_not() -> None:
    distances = look_aheads.distances(look_aheads.LookAheads(SMALL).unrolled)
    assert distances["exact"]["relative_error"] < 1e-4
    assert distances["exact"]["cosine"] > 0.9999
    for mode in ("matching", "head", "step"):
        assert distances[mode]["relative_error"] > 1e-3


def test_updates_by_every_mode_move_the_labels_net() -> None:
    look = look_aheads.LookAheads(SMALL)
    for name, update in look.updates.items():
        subject = look.unrolled if name == "unrolled" else look.by_mode
        net = subject.method.distiller.generator_net[0].weight  # type: ignore[union-attr,index]
        before = net.detach().clone()
        update()
        assert not torch.equal(before, net)


def test_ddn_holds_no_more_for_backward_than_er() -> None:
    middling = Workload(width=4, batch=16, image_size=16, buffer_size=20)  # where images take more than weights
    alone, with_ddn, unrolled = (
        peak_memory(Subject(ER, middling, distiller).step, middling.device).saved
        for distiller in (None, DataDistillNet(), UnrolledNet())
    )
    assert with_ddn <= 1.1 * alone
    assert unrolled > 1.5 * alone
