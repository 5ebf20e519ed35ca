"""Evaluations that are not quadratic in the number of tasks: after some tasks, and on some images of each."""

import json
from pathlib import Path

import pytest
import torch
from tiny import Fit, TinySequence, small_net

from ddn_lightning import ER, ConfigurationError, LastCheckpoint, ReplayMethod
from ddn_lightning.cli import main


def er() -> ReplayMethod:
    return ER(small_net(), 6, buffer_size=12, replay_batch_size=6)


@pytest.mark.parametrize(("every", "evaluated"), [(1, [0, 1, 2]), (2, [1, 2]), (3, [2]), (5, [2])])
@pytest.mark.parametrize("epochs", [1, 2])
def test_the_rows_of_some_tasks_are_those_of_a_run_with_all(
    fit: Fit, every: int, evaluated: list[int], epochs: int
) -> None:
    data = {"batch_size": 6, "epochs_per_task": epochs}
    whole = fit(er, TinySequence(**data))  # type: ignore[arg-type]
    some = fit(er, TinySequence(**data, evaluate_every_n_tasks=every))  # type: ignore[arg-type]
    assert (~some.accuracy_matrix.isnan()).any(dim=1).nonzero().flatten().tolist() == evaluated
    for name in ("accuracy_matrix", "task_il_matrix"):
        found, expected = getattr(some, name)[evaluated], getattr(whole, name)[evaluated]
        assert torch.equal(found.nan_to_num(), expected.nan_to_num())
    for name, weight in whole.network.state_dict().items():
        assert torch.equal(weight, some.network.state_dict()[name])


def test_the_checkpoint_of_the_last_task_has_its_row(fit: Fit) -> None:
    data = TinySequence(batch_size=6, evaluate_every_n_tasks=2)
    method = fit(er, data, callbacks=[LastCheckpoint("checkpoints")], enable_checkpointing=True)
    saved = torch.load("checkpoints/last.ckpt", weights_only=True)["state_dict"]["accuracy_matrix"]
    assert torch.equal(saved.nan_to_num(), method.accuracy_matrix.nan_to_num())
    assert not saved[2].isnan().any()


def test_some_images_of_each_task_are_measured(fit: Fit) -> None:
    data = TinySequence(batch_size=6, images_per_task=7)
    method = fit(er, data)
    chosen = data.evaluation_loader(3).order
    samples = data.served(train=False)
    assert samples.labels[chosen].bincount().tolist() == [3] * 6  # 7 images are 3 of each of two classes
    again = TinySequence(images_per_task=7)
    again.setup("test")
    assert torch.equal(chosen, again.evaluation_loader(3).order)
    assert torch.equal(data.evaluation_loader(2).order, chosen[:12])
    assert sum(len(batch.labels) for batch in data.test_dataloader()) == len(samples)
    method.eval()
    with torch.no_grad():
        hits = method(data.transform(samples.images[chosen])).argmax(dim=1) == samples.labels[chosen]
    assert method.accuracy_matrix[2].tolist() == pytest.approx([100 * float(h.float().mean()) for h in hits.split(6)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"evaluate_every_n_tasks": 0}, "evaluate_every_n_tasks must be positive, got 0"),
        ({"images_per_task": -1}, "images_per_task must be positive, got -1"),
        ({"images_per_task": 1}, "images_per_task must be at least 2, one of each class, got 1"),
        (
            {"evaluate_every_n_tasks": 2, "evaluate_every_n_epochs": 1},
            "evaluate_every_n_epochs must be left out with evaluate_every_n_tasks = 2, got 1",
        ),
    ],
)
def test_contradictions_are_refused(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        TinySequence(**arguments)  # type: ignore[arg-type]


def test_the_results_say_what_was_measured() -> None:
    fast = ["--data.epochs_per_task", "1", "--trainer.limit_train_batches", "2", "--trainer.log_every_n_steps", "1"]
    sparse = ["--data.evaluate_every_n_tasks", "2", "--data.images_per_task", "20"]
    assert main(["fit", "-c", "quickstart", *fast, "--name", "whole"]) == 0
    assert main(["fit", "-c", "quickstart", *fast, *sparse, "--name", "some"]) == 0
    whole, some = (json.loads(Path(f"runs/{name}/results.json").read_text()) for name in ("whole", "some"))
    assert some["evaluate_every_n_tasks"] == 2
    assert some["images_per_task"] == 20
    assert [row[0] is None for row in some["accuracy_matrix"]] == [True, False, True, False, False]
    assert None not in (some["average_accuracy"], some["forgetting"])
    assert not {"evaluate_every_n_tasks", "images_per_task"} & set(whole)
    assert main(["compare", "runs"]) == 0
    assert main(["report", "runs"]) == 0
