import pytest
import torch

from ddn_lightning import ER, DataDistillNet
from ddn_lightning.bench.baselines import LOOPS, LookAheads, StepTimes, UnrolledNet, augmentations, time_loops
from ddn_lightning.bench.cost import peak_memory
from ddn_lightning.bench.prepared_method import PreparedMethod, RandomImages, Workload

SMALL = Workload(width=2, batch=4, image_size=8, buffer_size=20)


def test_exact_is_the_unrolled_gradient_and_the_cheaper_modes_are_not() -> None:
    errors = LookAheads(SMALL).errors()
    assert errors["exact"]["relative_error"] < 1e-4
    assert errors["exact"]["cosine"] > 0.9999
    for mode in ("matching", "head", "step"):
        assert errors[mode]["relative_error"] > 1e-3


def test_updates_in_every_mode_change_the_generator() -> None:
    look = LookAheads(SMALL)
    for name, update in look.updates.items():
        prepared = look.unrolled if name == "unrolled" else look.by_mode
        net = prepared.method.distiller.generator_net[0].weight  # type: ignore[union-attr,index]
        before = net.detach().clone()
        update()
        assert not torch.equal(before, net)


def test_ddn_saves_no_more_for_backward_than_er() -> None:
    middling = Workload(width=4, batch=16, image_size=16, buffer_size=20)  # where images take more than weights
    alone, with_ddn, unrolled = (
        peak_memory(PreparedMethod(ER, middling, distiller).step, middling.device).saved
        for distiller in (None, DataDistillNet(), UnrolledNet())
    )
    assert with_ddn <= 1.1 * alone
    assert unrolled > 1.5 * alone


@pytest.mark.parametrize("has_network", [True, False])
def test_every_loop_times_each_of_its_steps(has_network: bool) -> None:
    ticks = iter(range(10**6))
    seconds = time_loops(SMALL, has_network, steps=3, rounds=2, clock=lambda: float(next(ticks)))
    assert list(seconds) == list(LOOPS)
    assert all(steps == [1.0] * 6 for steps in seconds.values())  # one tick of the clock per step


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_steps_of_a_forked_process_are_recorded() -> None:
    watch = StepTimes(iter(range(100)).__next__, batches=2 * 3)
    trainer = SMALL.trainer(callbacks=[watch], devices=2, strategy="ddp_fork")
    trainer.fit(SMALL.method(ER), RandomImages(SMALL, steps=3))
    assert watch.seconds(last=2) == [1.0, 1.0]


def test_both_augmentations_give_the_same_shape_type_and_range() -> None:
    ours, torchvisions = (augment() for augment in augmentations(SMALL).values())
    assert isinstance(ours, torch.Tensor)
    assert isinstance(torchvisions, torch.Tensor)
    assert ours.shape == torchvisions.shape == (4, 3, 8, 8)
    assert ours.dtype == torchvisions.dtype == torch.float32
    for images in (ours, torchvisions):
        assert images.min() >= -2  # mean 0.5, std 0.25
        assert images.max() <= 2
