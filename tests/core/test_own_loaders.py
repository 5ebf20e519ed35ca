"""A trained method is evaluated on any loader of raw images and labels."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from tiny import TinySequence, quiet_trainer, small_net
from torch.utils.data import DataLoader, TensorDataset

from ddn_lightning import ER, ConfigurationError, ReplayMethod

Fit = Callable[..., ReplayMethod]
METHOD = partial(ER, num_classes=6, buffer_size=10, replay_batch_size=5, lr=0.1)


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_test_and_validate_take_own_loaders(fit: Fit) -> None:
    method = fit(lambda: METHOD(small_net()), TinySequence(batch_size=12, epochs_per_task=4))
    images, labels = TinySequence().load(train=False)
    loader = DataLoader(TensorDataset(images, labels), batch_size=16)
    expected = 100 * float((method.predict(images).labels == labels).float().mean())
    for evaluate in (quiet_trainer().test, quiet_trainer().validate):
        (found,) = evaluate(method, loader, verbose=False)
        assert found == {"accuracy": pytest.approx(expected)}
    predicted = quiet_trainer().predict(method, loader)
    assert torch.equal(torch.cat(predicted), method.predict(images).labels)  # type: ignore[arg-type]
    normalised = DataLoader(TensorDataset(images.float(), labels), batch_size=16)
    with pytest.raises(ConfigurationError, match="takes raw uint8 images, got float32"):
        quiet_trainer().test(method, normalised, verbose=False)


def test_onnx_is_exported_by_export() -> None:
    with pytest.raises(ConfigurationError, match=r"use method.export\('model.onnx'\)"):
        METHOD(small_net()).to_onnx("model.onnx")
