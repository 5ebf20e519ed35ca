"""A fake ``ddn fit`` that takes milliseconds and writes the files of a run.

Files in the parent of the run folders control it; each holds a substring of run names: ``poison`` of runs that fail,
``crashing`` of runs that end in a traceback, ``short`` of runs that end early, ``killed`` of runs that are killed,
``diverging`` of runs that diverge, ``slow`` of runs that wait for
SIGTERM and then save. Each start is appended to ``<name>.starts``.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

DATA = {"class_names": None, "mean": [0.0], "std": [1.0], "train": None, "test": None}


def main(arguments: list[str]) -> None:
    runs, name, seed = (arguments[arguments.index(f"--{key}") + 1] for key in ("runs", "name", "seed_everything"))
    folder = Path(runs, name)
    is_resumed = "--ckpt_path" in arguments
    with Path(runs, f"{name}.starts").open("a") as file:
        file.write(f"{'resumed' if is_resumed else 'new'} {os.environ.get('CUDA_VISIBLE_DEVICES')}\n")
    if is_among(name, Path(runs, "poison")):
        print("error: poisoned\ntip: none")
        sys.exit(2)
    if is_among(name, Path(runs, "crashing")):
        raise RuntimeError("crashed")
    if is_among(name, Path(runs, "short")):
        print("See them: ddn report")
        sys.exit()
    if is_among(name, Path(runs, "killed")):
        print("halfway", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    folder.mkdir(exist_ok=is_resumed)
    if is_among(name, Path(runs, "slow")) and not is_resumed:
        wait_to_save(folder)
    matrix = [[80.0, None], [30.0 + int(seed), 50.0]]
    results = {"average_accuracy": 40.0 + int(seed), "forgetting": 50.0 - int(seed), "accuracy_matrix": matrix}
    results |= {"calibrated_average_accuracy": 50.0 + int(seed), "status": "complete", "seed": int(seed)}
    results |= {"method": "ER", "dataset": "digits", "buffer_size": 100, "data": DATA, "cpu_minutes": 6.0}
    if is_among(name, Path(runs, "diverging")):
        (folder / "checkpoints").mkdir(exist_ok=True)
        (folder / "checkpoints" / "last.ckpt").touch()
        outcome = {"status": "diverged", "reason": "loss became nan in task 2 at step 7 with lr 9: lower --model.lr"}
        (folder / "results.json").write_text(json.dumps({**results, **outcome, "tasks_finished": 1}))
        sys.exit(3)
    (folder / "results.json").write_text(json.dumps({**results, "tasks_finished": 2}))


def is_among(name: str, path: Path) -> bool:
    return path.exists() and path.read_text() in name


def wait_to_save(folder: Path) -> None:
    def save(*_: object) -> None:
        (folder / "checkpoints").mkdir()
        (folder / "checkpoints" / "last.ckpt").touch()
        sys.exit(143)

    signal.signal(signal.SIGTERM, save)
    (folder / "ready").touch()
    time.sleep(60)


if __name__ == "__main__":
    main(sys.argv[1:])
