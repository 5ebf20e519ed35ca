"""Made-up runs of any number of classes, written as ``ddn fit`` writes them."""

from pathlib import Path

import torch
import yaml
from torch import Tensor

from ddn_lightning.runs.anytime import AnytimeRecord, Evaluation, write_anytime
from ddn_lightning.runs.observed import Observed, save_observed
from ddn_lightning.runs.results import Results, write_results

SIDE = 32  # of an image
EVALUATIONS = 6  # within a task


def made_up_run(
    folder: Path,
    method: str = "ER",
    plugin: str | None = None,
    seed: int = 0,
    num_classes: int = 100,
    num_tasks: int = 10,
    class_order: int = 0,
    **arguments: float,
) -> Path:
    """A finished run with observations and a continual evaluation; ``arguments`` are the method's."""
    folder.mkdir(parents=True)
    chance = torch.Generator().manual_seed(seed)
    matrix = _accuracy_matrix(num_tasks, chance) + (4.0 if plugin else 0.0)
    names = [f"{('aquarium fish', 'willow tree', 'road')[n % 3]} {n}" for n in range(num_classes)]
    results = Results(
        status="complete",
        method=method,
        plugin=plugin,
        dataset="cifar100",
        buffer_size=500,
        class_names=names,
        seed=seed,
        tasks_finished=num_tasks,
        seconds=900.0 + 100 * seed,
        cpu_minutes=16.0 + seed,
        average_accuracy=float(matrix[-1].mean()),
        forgetting=30.0 + seed,
        accuracy_matrix=[[None if v != v else round(v, 2) for v in row] for row in matrix.tolist()],
        anytime={"average_accuracy_over_steps": 40.0, "images": 500, "seed": 0, "seconds": 9.0},
    )
    write_results(folder, results)
    model = {"class_path": f"ddn_lightning.{method}", "init_args": {"buffer_size": 500, "lr": 0.03, **arguments}}
    data = {"class_path": "ddn_lightning.SplitCIFAR100", "init_args": {"num_tasks": num_tasks}}
    if plugin:
        model["init_args"]["distiller"] = {"class_path": f"ddn_lightning.{plugin}"}
    config = {"seed_everything": seed, "name": None, "model": model, "data": data}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    save_observed(_observed(num_classes, num_tasks, plugin is not None, chance, class_order), folder)
    write_anytime(folder, _anytime(matrix))
    return folder


def _accuracy_matrix(num_tasks: int, chance: torch.Generator) -> Tensor:
    age = (torch.arange(num_tasks)[:, None] - torch.arange(num_tasks)).double()  # tasks learned since
    noise = 8 * torch.rand(num_tasks, num_tasks, generator=chance)
    return (20 + 60 * torch.exp(-age / 3) + noise).masked_fill(age < 0, torch.nan)


def _observed(
    num_classes: int, num_tasks: int, has_soft_labels: bool, chance: torch.Generator, class_order: int
) -> Observed:
    order = torch.randperm(num_classes, generator=torch.Generator().manual_seed(class_order))
    task = order * num_tasks // num_classes  # of each class
    is_class_of_task = torch.nn.functional.one_hot(task, num_tasks).T.bool()
    closeness = torch.rand(num_classes, num_classes, generator=chance) + (task[:, None] == task) + task / num_tasks
    probability = (3 * closeness + 4 * torch.eye(num_classes)).softmax(dim=1)
    confusion = torch.poisson(100 * probability, generator=chance).long()
    seen = torch.arange(num_tasks)[:, None] >= task  # (tasks, classes)
    composition = torch.where(seen, 500 // seen.sum(dim=1, keepdim=True), 0)
    stream = torch.where((torch.arange(num_tasks)[:, None] == task).repeat_interleave(10, dim=0), 50, 0)
    labels = torch.randint(num_classes, (12,), generator=chance)
    images = torch.randint(256, (12, 3, SIDE, SIDE), generator=chance, dtype=torch.uint8)
    soft = {}
    if has_soft_labels:
        soft["soft_labels"] = probability.where(seen[:, :, None], torch.nan)
        soft["label_entropy"] = torch.linspace(3.0, 1.0, num_tasks)
        soft["sample_soft_labels"] = probability[labels]
    return Observed(
        is_class_of_task,
        stream,
        confusion,
        probability,
        composition,
        sample_images=images,
        sample_labels=labels,
        **soft,
    )


def _anytime(matrix: Tensor) -> AnytimeRecord:
    evaluations = []
    for task, row in enumerate(matrix):
        before = matrix[max(task - 1, 0)].nan_to_num(0.0)
        for number in range(1, EVALUATIONS + 1):
            share = number / EVALUATIONS
            values = before + share * (row - before)
            evaluations.append(Evaluation(20 * len(evaluations) + 20, task, 0, tuple(values.tolist())))
    return AnytimeRecord(evaluations)
