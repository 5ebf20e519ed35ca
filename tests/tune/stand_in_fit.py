"""A fake ``ddn fit`` for trials that takes milliseconds: its accuracy is a function of the learning rate.

Files in the parent of the run folders control it; each holds a substring of run names: ``poison`` of runs that fail,
``diverging`` of runs that diverge, ``peeking`` of runs that are measured on test images. Each start is appended to
``starts``, with the name of the run.
"""

import json
import math
import sys
from pathlib import Path

TASKS = 5


def main(arguments: list[str]) -> None:
    def last(option: str, default: str = "") -> str:
        places = [place for place, word in enumerate(arguments) if word == f"--{option}"]
        return arguments[places[-1] + 1] if places else default

    runs, name, seed = Path(last("runs")), last("name"), int(last("seed_everything"))
    assert last("data.closed_test") == "true"
    folder = runs / name
    folder.mkdir(exist_ok=True)
    with Path(runs, "starts").open("a") as file:
        file.write(f"{name}\n")
    if is_among(name, runs / "poison"):
        print("error: poisoned")
        sys.exit(2)
    matrix, status = trained(
        rate=float(last("model.lr")),
        bonus=float(last("model.old_memory_weight", "0")) + seed % 10,
        limit=int(last("trainer.callbacks.tasks", str(TASKS))),
    )
    results = {"accuracy_matrix": matrix, "tasks_finished": sum(row[0] is not None for row in matrix)}
    results |= {"method": "ER", "plugin": None, "dataset": "digits", "buffer_size": 100, "seed": seed}
    results |= {"average_accuracy": None, "forgetting": None, "status": status, "reason": "as told"}
    results["measured_on"] = "test" if is_among(name, runs / "peeking") else "validation"
    if is_among(name, runs / "diverging"):
        results |= {"status": "diverged", "reason": "loss became nan", "tasks_finished": 0}
    (folder / "results.json").write_text(json.dumps(results))
    sys.exit(3 if results["status"] == "diverged" else 0)


def trained(rate: float, bonus: float, limit: int) -> tuple[list[list[float | None]], str]:
    """The accuracy matrix, best at a rate of 0.03, and the status."""
    matrix: list[list[float | None]] = [[None] * TASKS for _ in range(TASKS)]
    for task in range(TASKS):
        acc = 90 - 10 * task - 20 * abs(math.log10(rate / 0.03)) * (task + 1) / TASKS + bonus
        matrix[task][: task + 1] = [acc] * (task + 1)
        if task + 1 == limit < TASKS:
            return matrix, "stopped"
    return matrix, "complete"


def is_among(name: str, path: Path) -> bool:
    return path.exists() and path.read_text() in name


if __name__ == "__main__":
    main(sys.argv[1:])
