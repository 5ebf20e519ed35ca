"""The tables that ``ddn reproduce`` knows: the paper's, the grid behind its figure, and a small one of our own."""

from dataclasses import replace
from itertools import product

from ddn_lightning.report.paper import PAPER_TABLES, Cell, Target, paper_table

TABLES = (*PAPER_TABLES, "alpha_beta", "digits")
ALPHAS = (0, 0.5, 1, 2)
BETAS = (0, 0.5, 0.9, 1)
HOSTS = ("er", "derpp", "cls_er", "er_ace")
OTHERS = ("icarl", "lucir", "bic", "mnemonics", "lodm", "whole_buffer")
ABLATIONS = ("random_labels", "label_smoothing", "l2y")


def table(name: str) -> list[Target]:
    """The cells of one of :data:`TABLES`."""
    if name == "alpha_beta":
        return _alpha_beta()
    if name == "digits":
        return _digits()
    return paper_table(name)


def _alpha_beta() -> list[Target]:
    """DDN's two weights on Split CIFAR-10. The paper shows a figure; its best point is a cell of Table 1."""
    (best,) = [target for target in paper_table("table1") if target.cell == Cell("online", "cifar10", 200, "er", "ddn")]
    grid = []
    for alpha, beta in product(ALPHAS, BETAS):
        cell = replace(best.cell, variant=f"alpha={alpha} beta={beta}")
        grid.append(replace(best, cell=cell) if (alpha, beta) == (1, 0.9) else Target(cell))
    return grid


def _digits() -> list[Target]:
    """Every method on Split Digits: minutes on a CPU, without a download, and not in the paper."""
    bounds = [Cell("offline", "digits", 0, method) for method in ("finetune", "joint")]
    hosts = [Cell("offline", "digits", 100, *pair) for pair in product(HOSTS, ("none", "ddn"))]
    others = [Cell("offline", "digits", 100, method) for method in OTHERS]
    ablations = [Cell("offline", "digits", 100, "er", plugin) for plugin in ABLATIONS]
    return [Target(cell) for cell in (*bounds, *hosts, *others, *ablations)]
