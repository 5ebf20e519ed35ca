"""A trained method predicts the same when it is loaded without data or Trainer."""

from pathlib import Path

import pytest
import torch
from every_method import METHODS, build
from tiny import Fit, TinySequence, small_net

from ddn_lightning import ReplayMethod


@pytest.mark.parametrize("method_class", [m for m in METHODS if m.__module__ != "every_method"])
def test_a_loaded_method_predicts_the_same(fit: Fit, method_class: type[ReplayMethod], tmp_path: Path) -> None:
    method = fit(lambda: build(method_class, backbone=small_net()), TinySequence(batch_size=6))
    method.trainer.save_checkpoint(tmp_path / "trained.ckpt")
    loaded = method_class.load_from_checkpoint(tmp_path / "trained.ckpt", backbone=small_net(), weights_only=True)
    assert torch.equal(loaded.accuracy_matrix.nan_to_num(), method.accuracy_matrix.nan_to_num())
    images = torch.randn(7, 1, 8, 8)
    assert torch.equal(loaded.eval().class_scores(images), method.eval().class_scores(images))
    assert loaded.tasks_finished == loaded.tasks_seen == 3
    assert loaded.hparams == method.hparams
