"""The paper's ablations: the arms' means over common seeds, and that the manual shows them as measured."""

from study.ablation import DDN, TABLE_3, WEIGHTS, TitledArm, ablation_table
from study.measured import Group, MeasuredRun, measured_runs

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


def test_what_the_manual_says_of_the_labels_is_so() -> None:
    running, _, calibrated, _ = means(TABLE_3)
    assert abs(running["L2Y"] - running["DDN"]) < 1
    assert min(running["L2Y"], running["DDN"]) > running["ER"] + 5
    assert max(calibrated.values()) == calibrated["ER"]
    for title in ("random labels", "label smoothing, epsilon = 0.5"):
        assert 9 < running["ER"] - running[title] < 11
        assert 1 < calibrated["ER"] - calibrated[title] < 2.5


def test_what_the_manual_says_of_the_weights_is_so() -> None:
    acc, fm, calibrated_acc, calibrated_fm = means(WEIGHTS)
    alphas = [f"alpha = {alpha}" for alpha in ("0", "0.5", "1", "2")]
    for forgetting in (fm, calibrated_fm):
        assert sorted(alphas, key=forgetting.__getitem__, reverse=True) == alphas
    assert max(acc.values()) - acc["alpha = 0"] < 1.5
    assert max(calibrated_acc.values()) == calibrated_acc["alpha = 0"]
    betas = [acc[f"beta = {beta}"] for beta in ("0", "0.5", "0.9", "1")]
    assert max(betas) - min(betas) < 2
    assert betas[0] == max(betas)


def means(arms: tuple[TitledArm, ...]) -> list[dict[str, float]]:
    """The means of ACC and FM, running and calibrated, by title."""
    rows = [cells_of(line) for line in ablation_table(measured_runs(), BED, arms).splitlines()[4:]]
    return [{row[0]: float(row[column].split()[0]) for row in rows} for column in range(1, 5)]


def cells_of(line: str) -> list[str]:
    return line.strip("| ").split(" | ")
