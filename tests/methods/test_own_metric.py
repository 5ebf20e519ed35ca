"""The metric of the page "Your own method" gives what a count of the test images gives."""

from typing import Any

import pytest
import torch
from documents import PAGES, blocks
from tiny import MakeTrainer, TinySequence, small_net


@pytest.mark.parametrize("stop", [None, 7])
def test_a_users_metric_is_logged_at_each_evaluation(make_trainer: MakeTrainer, stop: int | None) -> None:
    (block,) = [block for block in blocks(PAGES["docs/how_to/own_method.md"], "python") if "WithTopTwo" in block]
    found: dict[str, Any] = {"__name__": "docs"}
    exec(compile(block, "docs/how_to/own_method.md", "exec"), found)
    method = found["WithTopTwo"](small_net(), num_classes=6, buffer_size=10, replay_batch_size=5, lr=0.1)
    data, trainer = TinySequence(batch_size=6, epochs_per_task=2), make_trainer(max_steps=stop or -1)
    trainer.fit(method, data)
    images, labels = data.load(train=False)
    if stop is not None:  # no evaluation yet
        assert "top_two" not in trainer.callback_metrics
        return
    top = method.predict(images).probabilities.topk(2).indices
    assert trainer.callback_metrics["top_two"] == pytest.approx(
        float((top == labels[:, None]).any(dim=1).float().mean())
    )
    assert torch.equal(method.predict(images).labels, top[:, 0])
