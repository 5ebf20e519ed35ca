"""The paper's ablations: the arms' means over common seeds."""

from study.ablation import DDN, TitledArm, ablation_table
from study.measured import Group, MeasuredRun

BED = ("cifar10@16", "ResNet18 width 16", "online", 200)
ER: TitledArm = ("ER", "none", "")
ARMS: tuple[TitledArm, ...] = (ER, ("DDN", *DDN), ("other", "ddn", "lookahead=step, alpha=2, beta=0.9"))


def run(arm: TitledArm, seed: int, acc: float) -> MeasuredRun:
    return MeasuredRun(Group(*BED, "er", *arm[1:]), seed, acc, acc + 1, (), acc + 2, acc + 3, 1.0, "ddn fit")


def test_arms_are_averaged_over_the_seeds_that_all_of_them_have() -> None:
    runs = [run(arm, seed, 10.0 * number + seed) for number, arm in enumerate(ARMS) for seed in (3, 20, 22)]
    runs += [run(ER, 21, 99.0)]
    lines = ablation_table(runs, BED, (*ARMS, ("not run", "l2y", ""))).splitlines()
    assert lines[0] == "Seeds 20 22:"
    assert lines[2] == "| arm | ACC, running | FM, running | ACC, calibrated | FM, calibrated | paper |"
    assert lines[4:] == [
        "| ER | 21.00 ± 1.41 | 22.00 ± 1.41 | 23.00 ± 1.41 | 24.00 ± 1.41 | 36.05 / 49.99 |",
        "| DDN | 31.00 ± 1.41 | 32.00 ± 1.41 | 33.00 ± 1.41 | 34.00 ± 1.41 | 41.93 / 35.28 |",
        "| other | 41.00 ± 1.41 | 42.00 ± 1.41 | 43.00 ± 1.41 | 44.00 ± 1.41 | - |",
    ]
