"""A trained method is evaluated on any loader of raw images and labels."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from tiny import TinySequence, quiet_trainer, small_net
from torch.utils.data import DataLoader, TensorDataset

from ddn_lightning import ER, ConfigurationError, ReplayMethod, load

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


@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*callbacks used to create the checkpoint")
def test_several_loaders_and_a_checkpoint_are_taken(fit: Fit, tmp_path: Path) -> None:
    method = fit(lambda: METHOD(small_net()), TinySequence(batch_size=12))
    method.trainer.save_checkpoint(tmp_path / "a.ckpt")
    images, labels = TinySequence().load(train=False)
    loaders = [DataLoader(TensorDataset(images[half], labels[half]), batch_size=9) for half in (labels < 3, labels > 2)]
    loaded = load(tmp_path / "a.ckpt")
    for path in (None, tmp_path / "a.ckpt"):
        found = quiet_trainer().test(loaded, loaders, ckpt_path=path, verbose=False)
        for number, row in enumerate(found):
            data = loaders[number].dataset
            hits = method.predict(data[:][0]).labels == data[:][1]
            assert row == {f"accuracy/dataloader_idx_{number}": pytest.approx(100 * float(hits.float().mean()))}
        assert len(quiet_trainer().predict(loaded, loaders, ckpt_path=path)) == 2
    with pytest.raises(ConfigurationError, match="a new ER does not know how to normalise .*load"):
        quiet_trainer().test(METHOD(small_net()), loaders, ckpt_path=tmp_path / "a.ckpt", verbose=False)


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_a_loader_of_dictionaries_is_refused_with_what_to_do(fit: Fit) -> None:
    method = fit(lambda: METHOD(small_net()), TinySequence(batch_size=12))
    rows = [{"image": torch.zeros(1, 8, 8, dtype=torch.uint8), "label": 0}]
    with pytest.raises(ConfigurationError, match="must be images or .*, got a dict: give the loader a collate_fn"):
        quiet_trainer().test(method, DataLoader(rows), verbose=False)  # type: ignore[arg-type]


def test_onnx_is_exported_by_export() -> None:
    with pytest.raises(ConfigurationError, match=r"use method.export\('model.onnx'\)"):
        METHOD(small_net()).to_onnx("model.onnx")
