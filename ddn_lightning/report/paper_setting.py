"""How a run's setting differs from that of the paper's tables."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ddn_lightning.report.seed_group import CONTROLS, MODEL
from ddn_lightning.runs.results import Results

DATA = "data.init_args."
NETWORK, WIDTH = "ResNet18", 64
SETTINGS = {1: "online", 50: "offline"}  # by epochs per task
OPTIONS = {  # an option that a run does not record counts as the paper's; learning rates and the look-ahead may differ
    f"{DATA}batch_size": 32,
    f"{DATA}flip": True,
    f"{DATA}padding": 4,
    f"{MODEL}replay_batch_size": 32,
    f"{MODEL}momentum": 0,
    f"{MODEL}weight_decay": 0,
    f"{MODEL}batches": "separate",
    f"{MODEL}gradient_clip_val": None,
    f"{DATA}class_order_seed": None,
    f"{DATA}validation_share": None,
    f"{DATA}validation_per_class": None,
    **{MODEL + name: value for name, value in CONTROLS.items()},
    "trainer.overfit_batches": 0,
}
OF_DDN = {"alpha": 1.0, "beta": 0.9, "memory": "old", "compose": "additive", "apply_from_task": 2, "update_every": 1}
OF_DDN |= {"outer": "current_and_memory"}
CLASSES = {  # of an argument that is an object; none if there is none in the paper
    "memory": ("ReservoirBuffer", "LowRankMemory"),
    "optimizer": ("SGD",),
    "lr_scheduler": (),
    "rand_augment": (),
    "transform": (),
}
SINGLE_PRECISION = (None, 32, "32", "32-true")
FORGETTING = {"over": "previous", "reference": "best"}
LIMITS = ("trainer.limit_train_batches", "trainer.limit_val_batches")


@dataclass(frozen=True)
class PaperData:
    """A dataset of the paper: number of tasks, height and width of the images, and their numbers by split."""

    tasks: int
    image_size: int
    num_images: Mapping[str, int]


CIFAR_IMAGES = {"train": 50_000, "test": 10_000}
PAPER_DATA = {
    "cifar10": PaperData(5, 32, CIFAR_IMAGES),
    "cifar100": PaperData(10, 32, CIFAR_IMAGES),
    "tiny_imagenet": PaperData(10, 64, {"train": 100_000, "test": 10_000}),
}


def differences_to_paper(results: Results, config: Mapping[str, Any]) -> list[str]:
    """What differs from the paper's setting, such as ``width 20 instead of 64``; empty if nothing does.

    Args:
        results: Results of a run.
        config: Its configuration with dotted keys.
    """
    data = PAPER_DATA.get(results.dataset)
    if data is None:
        return [f"{results.dataset} is not among the paper's data"]
    epochs = config.get(f"{DATA}epochs_per_task")
    found = [] if epochs in list(SETTINGS) else [f"epochs_per_task {epochs} instead of 1 or 50"]
    found += [*_network(config), *_options(results, config), *_images(results, data)]
    if len(results.matrix) != data.tasks:
        found.append(f"{len(results.matrix)} tasks instead of {data.tasks}")
    for key, value in FORGETTING.items():
        if (given := results.forgetting_definition.get(key, value)) != value:
            found.append(f"forgetting with {key} {given} instead of {value}")
    if results.statistics == "memory":
        found.append("calibrated instead of running BatchNorm statistics")
    return found


def _network(config: Mapping[str, Any]) -> list[str]:
    network = str(config.get(f"{MODEL}backbone.class_path", "an unknown network")).rpartition(".")[2]
    if network != NETWORK:
        return [f"{network} instead of {NETWORK}"]
    width = config.get(f"{MODEL}backbone.init_args.width", WIDTH)
    return [] if width == WIDTH else [f"width {width} instead of {WIDTH}"]


def _options(results: Results, config: Mapping[str, Any]) -> list[str]:
    options: dict[str, Any] = dict(OPTIONS)
    if results.plugin == "DataDistillNet":
        options |= {f"{MODEL}distiller.init_args.{name}": value for name, value in OF_DDN.items()}
    given = {key: config.get(key, value) for key, value in options.items()}
    found = [
        f"{_name(key)} {given[key]} instead of {_text(options[key])}" for key in given if given[key] != options[key]
    ]
    for name, usual in CLASSES.items():
        given_class = str(config.get(f"{MODEL}{name}.class_path", "")).rpartition(".")[2]
        if given_class and given_class not in usual:
            found.append(f"{name} {given_class} instead of {usual[0] if usual else 'none'}")
    if (precision := config.get("trainer.precision")) not in SINGLE_PRECISION:
        found.append(f"precision {precision} instead of 32-true")
    order = config.get(f"{DATA}class_order")
    if order is not None and not (isinstance(order, list) and order == list(range(len(order)))):
        found.append("another class order")
    for key in LIMITS:
        limit = config.get(key)
        if limit is not None and not (isinstance(limit, float) and limit == 1):  # 1 is one batch, 1.0 are all
            found.append(f"{_name(key)} {limit} instead of all")
    return found


def _images(results: Results, data: PaperData) -> list[str]:
    found = []
    for split, number in data.num_images.items():
        if results.num_images.get(split, number) != number:
            found.append(f"{results.num_images[split]:,} {split} images instead of {number:,}")
    size = "x".join(map(str, results.image_shape[1:]))
    expected = f"{data.image_size}x{data.image_size}"
    return found if size in ("", expected) else [*found, f"images of {size} instead of {expected}"]


def _name(key: str) -> str:
    return key.rpartition(".")[2]


def _text(value: object) -> str:
    return "none" if value is None else str(value)
