"""BatchNorm statistics are measured, swapped and frozen without side effects."""

import copy

import pytest
import torch
from tiny import DropoutNet
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from ddn_lightning.networks.batch_statistics import (
    frozen_layers,
    frozen_statistics,
    measure,
    stratified_batches,
    swapped_buffers,
)


class TwoPaths(nn.Module):
    """Has a layer that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.used = DropoutNet()
        self.norm = nn.BatchNorm1d(8, momentum=0.3)
        self.unused = nn.BatchNorm1d(8)
        self.plain = nn.BatchNorm1d(8, track_running_stats=False)

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.plain(self.norm(self.used(images)))
        return outputs


def trained_module() -> TwoPaths:
    module = TwoPaths()
    for _ in range(3):
        module(torch.randn(5, 1, 8, 8))
    return module


def everything(module: nn.Module) -> tuple[dict[str, Tensor], list[object], Tensor]:
    state = {name: value.clone() for name, value in module.state_dict().items()}
    settings = [
        (part.training, getattr(part, "momentum", 0), part.__dict__.get("track_running_stats"))
        for part in module.modules()
    ]
    return state, settings, torch.get_rng_state()


def assert_untouched(module: nn.Module, before: tuple[dict[str, Tensor], list[object], Tensor]) -> None:
    state, settings, random_state = everything(module)
    assert all(torch.equal(state[name], value) for name, value in before[0].items())
    assert settings == before[1]
    assert torch.equal(random_state, before[2])


def test_measured_statistics_are_those_of_update_bn_without_dropout() -> None:
    module = trained_module()
    batches = [torch.randn(size, 1, 8, 8) for size in (6, 6, 5)]
    reference = copy.deepcopy(module)
    reference.get_submodule("used.layers.9").p = 0.0
    update_bn(batches, reference)  # type: ignore[arg-type]
    module.used.eval()  # as in the midst of an evaluation
    before = everything(module)
    found = measure(module, module, batches)
    assert_untouched(module, before)
    assert found.keys() == {
        f"{layer}.running_{what}" for layer in ("used.layers.1", "norm") for what in ("mean", "var")
    }
    for name, value in found.items():
        torch.testing.assert_close(value, reference.get_buffer(name))


def test_an_error_while_measuring_changes_nothing() -> None:
    module = trained_module()
    batches = [torch.randn(4, 1, 8, 8), torch.randn(4, 3, 8, 8)]
    before = everything(module)
    with pytest.raises(RuntimeError):
        measure(module, module, batches)
    assert_untouched(module, before)


def test_layers_in_evaluation_mode_are_excluded() -> None:
    module = trained_module()
    module.norm.eval()
    assert frozen_layers(module) == {"norm"}
    found = measure(module, module, [torch.randn(4, 1, 8, 8)], exclude=frozen_layers(module))
    assert found.keys() == {"used.layers.1.running_mean", "used.layers.1.running_var"}
    assert frozen_layers(module.eval()) == set()  # all are: that says nothing


def test_swapped_statistics_are_restored_also_after_an_error() -> None:
    module = trained_module().eval()
    images = torch.randn(4, 1, 8, 8)
    before = everything(module)
    found = measure(module, module, [images])
    outputs = module(images)
    with pytest.raises(RuntimeError), swapped_buffers(module, found):
        module(torch.cat([images, images], dim=1))
    assert_untouched(module, before)
    with swapped_buffers(module, found):
        assert not torch.equal(module(images), outputs)
    assert_untouched(module, before)
    with torch.inference_mode(), swapped_buffers(module, found):  # as Lightning evaluates
        module(images)
    assert_untouched(module, before)
    module.train()(images).sum().backward()  # nothing in it is an inference tensor


def test_frozen_statistics_do_not_change_outputs() -> None:
    module = trained_module()
    module.used.get_submodule("layers.1").eval()  # with its running statistics, as before
    images, start = torch.randn(4, 1, 8, 8), torch.get_rng_state()
    before = everything(module)
    with frozen_statistics(module):
        outputs = module(images)
    torch.set_rng_state(start)
    assert_untouched(module, before)
    assert torch.equal(module(images), outputs)
    assert not torch.equal(module.norm.running_mean, before[0]["norm.running_mean"])  # type: ignore[arg-type]


@pytest.mark.parametrize(("number", "batch_size"), [(2, 2), (3, 2), (7, 3), (200, 256), (201, 100), (1000, 7)])
def test_batches_are_bounded_and_have_equal_class_proportions(number: int, batch_size: int) -> None:
    labels = torch.randint(5, (number,))
    batches = stratified_batches(labels, batch_size)
    assert torch.equal(torch.cat(batches).sort().values, torch.arange(number))
    assert max(map(len, batches)) <= max(batch_size, 3)
    assert min(map(len, batches)) >= 2
    counts = torch.stack([labels[batch].bincount(minlength=5) for batch in batches])
    assert (counts.max(0).values - counts.min(0).values).max() <= 1


def test_balanced_batches_hold_equally_many_samples_of_each_class() -> None:
    labels = torch.tensor([0] * 7 + [2] * 3 + [5])
    batches = torch.cat(stratified_batches(labels, 4, class_balanced=True))
    assert labels[batches].bincount().tolist() == [7, 0, 7, 0, 0, 7]
    assert set(batches.tolist()) == set(range(11))  # nobody is left out
