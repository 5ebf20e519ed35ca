from pathlib import Path

import pytest
import torch
from every_method import SaveAlways, build
from test_resume import assert_equal, outcome
from tiny import BatchNormNet, Fit, TinySequence, random_samples, small_net
from torch.nn import functional

from ddn_lightning import ER, ImageTransform, LossAwareReservoir, ReplayMethod, ReservoirBuffer, Samples
from ddn_lightning.memory.loss_aware_reservoir import replacement_weights


def labelled(*labels: int) -> Samples:
    return Samples(torch.zeros(len(labels), 1, 2, 2, dtype=torch.uint8), torch.tensor(labels))


def owner() -> ER:
    return ER(BatchNormNet(), num_classes=6, transform=ImageTransform((0.5,), (0.25,)))


METHOD = owner()


def test_the_chance_of_being_replaced_follows_loss_and_class() -> None:
    class Weighed(LossAwareReservoir):
        def _weights(self, stored: Samples, method: object) -> torch.Tensor:
            return replacement_weights(stored.labels.double(), torch.tensor([4, 4, 2, 1])[stored.labels])

    replaced, entered = torch.zeros(4), 0
    for seed in range(1000):
        memory = Weighed(buffer_size=4, seed=seed)
        memory.add(labelled(0, 1, 2, 3))
        slots = memory.add(labelled(0), METHOD)
        replaced[slots] += 1
        entered += len(slots)
    assert entered / 1000 == pytest.approx(4 / 5, abs=0.05)  # as in a reservoir
    weights = torch.tensor([1 + 1, 2 / 3 + 1, 1 / 3 + 0.5, 0 + 0.25])
    assert torch.allclose(replaced / entered, weights / weights.sum(), atol=0.05)


def test_losses_are_those_of_the_network_in_evaluation_mode() -> None:
    method, memory = owner(), LossAwareReservoir(buffer_size=8)
    memory.add(random_samples(8))
    before = {name: value.clone() for name, value in method.named_buffers() if "running" in name}
    weights = memory._weights(memory[memory.slots], method)
    assert all(torch.equal(value, method.get_buffer(name)) for name, value in before.items())
    held = memory[memory.slots]
    losses = functional.cross_entropy(method.eval()(method.normalised(held.images)), held.labels, reduction="none")
    sizes = torch.stack([(held.labels == label).sum() for label in held.labels])
    expected = (losses.max() - losses) / (losses.max() - losses.min()) + sizes / sizes.max()
    assert torch.allclose(weights, expected.detach(), atol=1e-5)


def test_losses_that_diverge_are_left_to_be_reported_as_such() -> None:
    method, memory = owner(), LossAwareReservoir(buffer_size=4)
    with torch.no_grad():
        next(method.head.parameters()).fill_(torch.nan)
    memory.add(random_samples(4))
    for _ in range(10):
        memory.add(random_samples(4), method)
    assert len(memory) == 4


def test_the_first_samples_and_a_memory_without_a_method_are_those_of_a_reservoir() -> None:
    stream = [random_samples(9) for _ in range(4)]
    plain, aware = ReservoirBuffer(buffer_size=5), LossAwareReservoir(buffer_size=5)
    for samples in stream:
        assert torch.equal(plain.add(samples), aware.add(samples))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_several_ranks_and_a_resumed_run_replace_alike(fit: Fit, tmp_path: Path) -> None:
    def trained(**arguments: object) -> ReplayMethod:
        make = lambda: build(ER, None, small_net(), memory=LossAwareReservoir(candidates=4)).double()  # noqa: E731
        return fit(make, TinySequence(batch_size=5, drop_last=False), **arguments)

    one = trained(enable_checkpointing=True, callbacks=[SaveAlways(tmp_path)])
    several = trained(devices=2, strategy="ddp_fork")
    for name, parameter in one.named_parameters():
        assert (parameter - several.get_parameter(name)).abs().max() < 1e-9, name
    assert_equal(outcome(trained(ckpt_path=tmp_path / "step7.ckpt", seed=9)), outcome(one))
