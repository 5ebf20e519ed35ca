"""The loop of the manual without the Trainer gives what the Trainer gives."""

from typing import Any

import torch
from documents import PAGES, blocks
from lightning.pytorch import seed_everything
from tiny import quiet_trainer

from ddn_lightning import ER, SmallNet, SplitDigits


def test_the_loop_of_the_manual_equals_the_trainers() -> None:
    (loop,) = blocks(PAGES["docs/how_to/own_loop.md"], "python")
    names: dict[str, Any] = {"__name__": "docs"}
    exec(compile(loop, "own_loop.md", "exec"), names)
    network, memory = names["network"], names["memory"]

    seed_everything(0, verbose=False)
    method = ER(SmallNet(), num_classes=10, buffer_size=100, lr=0.03)
    quiet_trainer().fit(method, SplitDigits(batch_size=16))
    for one, other in zip(network.parameters(), method.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
    assert torch.equal(memory[memory.slots].images, method.memory[method.memory.slots].images)
    found = names["accuracy"].compute()["class_il"]
    seen = torch.ones_like(found).tril().bool()
    assert torch.equal(found[seen], method.accuracy_matrix[seen])
