import random

from ddn_lightning.report.figures.pareto import RING, pareto_figure, pareto_front
from ddn_lightning.report.group_comparison import ComparedRow
from ddn_lightning.report.statistic import Estimate


def dominates(one: tuple[float, float], other: tuple[float, float], higher_is_better: bool) -> bool:
    is_as_good = one[1] >= other[1] if higher_is_better else one[1] <= other[1]
    return one[0] <= other[0] and is_as_good and one != other


def test_the_front_consists_of_the_points_that_no_other_dominates() -> None:
    chance = random.Random(0)
    for number in range(200):
        points = list({(chance.randrange(6) / 1, chance.randrange(6) / 1) for _ in range(chance.randrange(1, 9))})
        higher_is_better = number % 2 == 0
        expected = [p for p in points if not any(dominates(other, p, higher_is_better) for other in points)]
        assert [points[index] for index in pareto_front(points, higher_is_better)] == sorted(expected)
    assert pareto_front([], higher_is_better=True) == []


def a_row(group: str, acc: float, minutes: float, n: int, test_bed: int = 0) -> ComparedRow:
    def known(mean: float) -> Estimate:
        return Estimate(n, mean, 1.0, 1.0, mean - 2, mean + 2)

    seeds = tuple(range(n))
    difference = (None, None, None)
    cost = (known(minutes), "ER", known(minutes / 2))
    return ComparedRow(group, test_bed, "running", seeds, known(acc), known(100 - acc), *difference, *cost)


def test_groups_with_too_few_seeds_are_drawn_but_not_on_the_front() -> None:
    rows = [a_row("ER", 30, 2, 3), a_row("ER + DDN", 35, 6, 3), a_row("lucky", 99, 1, 2)]
    figure = pareto_figure(rows)
    for panel, values in zip(figure.axes, ([30, 35], [70, 65]), strict=True):
        (ring,) = [line for line in panel.lines if line.get_markersize() == 15]
        assert ring.get_markeredgecolor() == RING["markeredgecolor"]
        assert list(ring.get_xdata()) == [1, 3]  # in the baseline's steps
        assert list(ring.get_ydata()) == values
        assert len(panel.containers) == 3
        assert panel.get_xlabel() == "processor time / that of ER"
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "ER",
        "ER + DDN",
        "lucky",
        "Pareto front of the means",
    ]


def test_each_test_bed_has_its_own_panels() -> None:
    figure = pareto_figure([a_row("ER", 30, 2, 3), a_row("ER on more", 60, 2, 3, test_bed=1)])
    assert [len(panel.containers) for panel in figure.axes] == [1, 1, 1, 1]
