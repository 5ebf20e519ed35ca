"""A checkpoint of a full memory: processor time, and how far it raises the peak of the process's memory.

``--before FOLDER`` measures another version of the package in the same rounds, too.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.common import Row, arguments, finish
from benchmarks.start_up import ROOT

SAVE = """
import json, resource, sys, time
from types import SimpleNamespace as Made
import torch
from ddn_lightning import LastCheckpoint, ReservoirBuffer, Samples

slots, size = map(int, sys.argv[1:])
memory, batch = ReservoirBuffer(slots), slots // 10
for start in range(0, slots, batch):
    images = torch.full((batch, 3, size, size), start % 251, dtype=torch.uint8)
    labels = torch.arange(batch) % 10
    memory.add(Samples(images, labels, tasks=labels))
del images
trainer = Made(
    fast_dev_run=False,
    is_global_zero=True,
    strategy=Made(broadcast=lambda value: value),
    _checkpoint_connector=Made(dump_checkpoint=lambda: {"memory": memory.state_dict()}),
)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before, started = peak(), time.process_time()
LastCheckpoint(".")._save(trainer)
print(json.dumps([time.process_time() - started, (peak() - before) / (slots * 3 * size * size)]))
"""


def save(slots: int, size: int, root: Path) -> tuple[float, float]:
    """Seconds of processor time, and the growth of the peak in sizes of the memory, in a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-c", SAVE, str(slots), str(size)]
        done = subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE)  # noqa: S603
    seconds, growth = json.loads(done.stdout)
    return seconds, growth


def main() -> None:
    """Measure every size, the versions in turn."""
    parser = arguments(__doc__)
    parser.add_argument("--before", type=Path, help="folder of another version of the package, to compare with")
    parser.add_argument("--slots", type=int, default=5000)
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 224], help="heights of the images")
    settings = parser.parse_args()
    roots = {"": ROOT} | ({} if settings.before is None else {"before: ": settings.before.resolve()})
    rows: list[Row] = []
    for size in settings.sizes:
        measured: dict[str, list[tuple[float, float]]] = {version: [] for version in roots}
        for _ in range(settings.rounds):
            for version, root in roots.items():
                measured[version].append(save(settings.slots, size, root))
        row: Row = {"memory": f"{settings.slots:,} x {size} x {size}", "MB": settings.slots * 3 * size * size / 1e6}
        for version, pairs in measured.items():
            row[f"{version}CPU s"] = min(seconds for seconds, _ in pairs)
            row[f"{version}peak, in memories"] = 1 + max(growth for _, growth in pairs)
        rows.append(row)
    finish(settings, "Checkpoints", {"A checkpoint of a full memory": rows})


if __name__ == "__main__":
    main()
