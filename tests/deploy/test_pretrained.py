"""A trained method becomes a folder for a model hub, and is loaded from it."""

from pathlib import Path

import pytest
import torch
from tiny import BatchNormNet, Fit, TinySequence, small_net

import ddn_lightning
from ddn_lightning import ER, ConfigurationError, DataDistillNet, ReplayMethod, SmallNet
from ddn_lightning.callbacks import Forgetting

pytest.importorskip("safetensors")


def equals(one: ReplayMethod, other: ReplayMethod) -> bool:
    images = TinySequence().load(train=False)[0]
    return torch.equal(one.predict(images).probabilities, other.predict(images).probabilities)


def test_a_trained_and_a_loaded_method_are_saved_and_loaded(fit: Fit, tmp_path: Path) -> None:
    method = fit(lambda: ER(SmallNet(width=4, feature_dim=8), 6, buffer_size=10, distiller=DataDistillNet()))
    method.save_pretrained(tmp_path / "mine", command="ddn fit -c quickstart")
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
    ]
    loaded = ddn_lightning.load(tmp_path / "mine")
    assert equals(loaded, method)
    assert torch.equal(loaded.accuracy_matrix.nan_to_num(-1), method.accuracy_matrix.nan_to_num(-1))
    loaded.save_pretrained(tmp_path / "again")
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (
        tmp_path / "mine" / "model.safetensors"
    ).read_bytes()
    card = (tmp_path / "mine" / "README.md").read_text()
    assert f"Average accuracy {float(method.accuracy_matrix[-1].mean()):.2f}" in card
    assert f"| 1 | {float(method.accuracy_matrix[0, 0]):.2f} |  |  |" in card
    assert "ddn fit -c quickstart" in card
    assert "0, 1, 2, 3, 4, 5" in card


def test_the_stored_samples_stay_at_home(fit: Fit, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    fit(lambda: ER(small_net(), 6, buffer_size=10)).save_pretrained(tmp_path / "mine")
    assert not [name for name in load_file(tmp_path / "mine" / "model.safetensors") if "memory/" in name]


def test_calibrated_statistics_are_kept(fit: Fit, tmp_path: Path) -> None:
    method = fit(lambda: ER(BatchNormNet(), 6, buffer_size=10), callbacks=[Forgetting(statistics="memory")])
    method.save_pretrained(tmp_path / "mine")
    assert equals(ddn_lightning.load(tmp_path / "mine", backbone=BatchNormNet()), method)


def test_what_cannot_be_saved_or_loaded_is_refused(fit: Fit, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="save_pretrained needs a method that was trained or loaded"):
        ER(small_net(), 6).save_pretrained(tmp_path / "mine")
    method = fit(lambda: ER(small_net(), 6, buffer_size=10))
    method.save_pretrained(tmp_path / "mine")
    with pytest.raises(ConfigurationError, match="folder must be new or empty"):
        method.save_pretrained(tmp_path / "mine")
    weights = tmp_path / "mine" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ConfigurationError, match="is damaged, or holds no trained method"):
        ddn_lightning.load(tmp_path / "mine")
