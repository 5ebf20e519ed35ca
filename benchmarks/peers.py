"""A step of ER here, in a plain PyTorch loop and, on request, in Avalanche: processes that take turns.

``--with_avalanche`` installs ``avalanche-lib`` from PyPI, in a temporary environment that shares the other packages of
this one. Each loop waits at a pipe between its rounds, which takes no processor time.
"""

import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from venv import EnvBuilder

import torch
from lightning.pytorch import Callback
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

from benchmarks.common import RandomImages, Row, Workload, arguments, finish, workload_of
from benchmarks.input import torchvision_transform
from ddn_lightning.methods.er import ER
from ddn_lightning.networks.backbone import Backbone
from ddn_lightning.networks.resnet18 import ResNet18

OURS, PLAIN, AVALANCHE = "ddn_lightning", "plain PyTorch", "Avalanche"
LR, WARM_UP = 0.03, 3  # steps of the second task that are not timed


class Rounds(Callback):
    """Sends the seconds of each step of a round, and waits until the next is asked for.

    Args:
        pipe: Where to send them.
        steps: Steps of a round.
        untimed: Steps before the first round.
    """

    def __init__(self, pipe: Connection, steps: int, untimed: int) -> None:
        self.pipe, self.steps, self.untimed = pipe, steps, untimed
        self.starts: list[float] = []

    def on_train_batch_start(self, *_: Any) -> None:
        """Note the time; every loop calls this before a step."""
        self.untimed -= 1
        if self.untimed >= 0:
            return
        self.starts.append(time.process_time())
        if self.untimed == -1 or len(self.starts) > self.steps:
            self.pipe.send([end - start for start, end in zip(self.starts, self.starts[1:], strict=False)])
            self.pipe.recv()
            self.starts = [time.process_time()]


class ChannelMeans(Backbone):
    """A trivial network, to time the loop alone."""

    feature_dim = 3

    def forward(self, images: Tensor) -> Tensor:
        """The mean of each channel."""
        return images.mean(dim=(2, 3))


class TransformedImages(Dataset[tuple[Tensor, int]]):
    """The images of a task with torchvision's augmentation, image by image as usual in PyTorch."""

    def __init__(self, sequence: RandomImages, task: int) -> None:
        images, labels = sequence.load(train=True)
        chosen = labels * sequence.num_tasks // sequence.num_classes == task
        self.images, self.targets = images[chosen], labels[chosen].tolist()
        self.transform = torchvision_transform(sequence)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(self.images[index]), self.targets[index]


def ours(sequence: RandomImages, backbone: Backbone, rounds: Rounds) -> None:
    """ER on a Trainer."""
    trainer = sequence.workload.trainer(callbacks=[rounds], limit_val_batches=0)
    trainer.fit(sequence.workload.method(ER, backbone, lr=LR), sequence)


def plain(sequence: RandomImages, backbone: Backbone, rounds: Rounds) -> None:
    """ER in a loop, with one forward pass of incoming and replayed images together."""
    network = nn.Sequential(backbone, nn.Linear(backbone.feature_dim, sequence.num_classes)).train()
    optimizer = torch.optim.SGD(network.parameters(), lr=LR)
    tasks = [TransformedImages(sequence, task) for task in range(sequence.num_tasks)]
    memory: list[tuple[int, int]] = []  # task and index
    seen = 0
    for task, data in enumerate(tasks):
        for batch in DataLoader(torch.arange(len(data)), sequence.batch_size, shuffle=True):  # type: ignore[arg-type]
            rounds.on_train_batch_start()
            drawn = [memory[slot] for slot in torch.randperm(len(memory))[: sequence.batch_size]]
            samples = [data[index] for index in batch.tolist()] + [tasks[old][index] for old, index in drawn]
            images, labels = zip(*samples, strict=True)
            optimizer.zero_grad()
            cross_entropy(network(torch.stack(images)), torch.tensor(labels)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            for index in batch.tolist():
                seen += 1
                slot = int(torch.randint(seen, ()))
                if len(memory) < sequence.workload.buffer_size:
                    memory.append((task, index))
                elif slot < len(memory):
                    memory[slot] = (task, index)


def avalanche(sequence: RandomImages, backbone: Backbone, rounds: Rounds) -> None:
    """Avalanche's replay on its plain strategy, without evaluation."""
    from avalanche.benchmarks.scenarios.dataset_scenario import benchmark_from_datasets
    from avalanche.benchmarks.utils import as_classification_dataset
    from avalanche.core import SupervisedPlugin
    from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin
    from avalanche.training.supervised import Naive

    watch = SupervisedPlugin()
    watch.before_training_iteration = rounds.on_train_batch_start
    tasks = [as_classification_dataset(TransformedImages(sequence, task)) for task in range(sequence.num_tasks)]
    network, size = nn.Sequential(backbone, nn.Linear(backbone.feature_dim, sequence.num_classes)), sequence.batch_size
    strategy = Naive(
        model=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=LR),
        train_mb_size=size,
        plugins=[ReplayPlugin(sequence.workload.buffer_size, batch_size=size, batch_size_mem=size), watch],
        evaluator=EvaluationPlugin(),
    )
    for experience in benchmark_from_datasets(train=tasks).train_stream:
        strategy.train(experience)


LOOPS: dict[str, Callable[[RandomImages, Backbone, Rounds], None]] = {OURS: ours, PLAIN: plain, AVALANCHE: avalanche}


def run(name: str, packages: str, workload: Workload, tiny: bool, steps: int, rounds: int, pipe: Connection) -> None:
    """Run a loop, in a process of its own."""
    sys.path.insert(0, packages)
    torch.set_num_threads(1)
    of_task = WARM_UP + rounds * steps + 1
    backbone = ChannelMeans() if tiny else ResNet18(width=workload.width)
    LOOPS[name](RandomImages(workload, of_task), backbone, Rounds(pipe, steps, untimed=of_task + WARM_UP))


def start(*of_run: Any) -> Connection:
    """A pipe to a loop that is ready for its first round."""
    pipe, end = (context := get_context("spawn")).Pipe()
    context.Process(target=run, args=(*of_run, end), daemon=True).start()
    end.close()
    pipe.recv()
    return pipe


def measure(loops: Mapping[str, Connection], rounds: int) -> list[Row]:
    """A row for each loop; ``median`` is that of the ratios of each round's median step."""
    seconds: dict[str, list[Sequence[float]]] = {name: [] for name in loops}
    for _ in range(rounds):
        for name, pipe in loops.items():
            pipe.send(None)
            seconds[name].append(pipe.recv())
    least = {name: min(map(min, found)) for name, found in seconds.items()}
    middle = {name: [median(steps) for steps in found] for name, found in seconds.items()}
    ratios = {name: median(a / b for a, b in zip(found, middle[OURS], strict=True)) for name, found in middle.items()}
    return [
        {"loop": name, "ms": 1e3 * s, "to ours": s / least[OURS], "median": ratios[name]} for name, s in least.items()
    ]


def install_avalanche(folder: str) -> str:
    """The packages of a new environment with Avalanche."""
    EnvBuilder(with_pip=True).create(folder)
    packages = Path(sysconfig.get_path("purelib", vars={"base": folder}))
    (packages / "shared.pth").write_text(sysconfig.get_path("purelib"))  # torch alone has gigabytes
    pip = [str(Path(folder, "bin", "pip")), "install", "--quiet", "avalanche-lib"]
    subprocess.run(pip, check=True)  # noqa: S603
    return str(packages)


def main() -> None:
    """Measure the loops."""
    parser = arguments(__doc__)
    parser.add_argument("--steps", type=int, default=4, help="steps of a round")
    parser.add_argument("--tiny", action="store_true", help="a trivial network, to time the loops alone")
    parser.add_argument("--with_avalanche", action="store_true")
    settings = parser.parse_args()
    with TemporaryDirectory() as folder:
        packages = install_avalanche(folder) if settings.with_avalanche else folder
        names = LOOPS if settings.with_avalanche else (OURS, PLAIN)
        size = (packages, workload_of(settings), settings.tiny, settings.steps, settings.rounds)
        rows = measure({name: start(name, *size) for name in names}, settings.rounds)
    title = f"Peers{', with a trivial network' if settings.tiny else ''}"
    finish(settings, title, {"A step of ER in task 2": rows})


if __name__ == "__main__":
    main()
