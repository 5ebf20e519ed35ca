"""A small search, which several tests share."""

from pathlib import Path

from ddn_lightning.reproduce.grid import Cell
from ddn_lightning.reproduce.plan import Options
from ddn_lightning.reproduce.presets import read_presets
from ddn_lightning.tune.ranges import Range
from ddn_lightning.tune.search import Arm, Search

CONFIGS = Path(__file__).parents[2] / "configs"
CELL = Cell("offline", "digits", 100, "er", "hard")
LR = Range("model.lr", 0.003, 0.3, log=True)
RANGES = (LR, Range("model.replay_batch_size", 8, 64), Range("model.batches", choices=("separate", "concatenated")))
ARM = Arm(CELL, RANGES)
SEARCH = Search(
    folder=Path("runs/tune"),
    command="ddn tune",
    trials=14,
    seeds=(1000, 1001),
    tasks=3,
    order_seed=1000,
    validation_share=0.1,
    at_once=1,
    rows=read_presets(CONFIGS),
    options=Options(CONFIGS, Path("runs")),
)
