"""Our numbers beside the paper's, cell by cell: how far apart they are, and whether they rank the methods alike."""

from collections.abc import Sequence
from dataclasses import dataclass

from ddn_lightning.report.names import title_of
from ddn_lightning.report.statistic import FEWEST_SEEDS, Estimate, estimate, rank_correlation
from ddn_lightning.report.tables import NOTHING, as_ranges, markdown_table
from study.measured import MEASURES, Group, Measure, MeasuredRun, reported
from study.paper import Cell, Target, paper_table, paper_targets

# Options that leave a group in the paper's cell: the exact gradient of G, or a cheaper one where that was not run.
WITHIN_A_CELL = ("", "lookahead=step")
FULL_SIZE = "full size"


@dataclass(frozen=True)
class CellBeside:
    """A cell of the paper with our runs of it, evaluated with running BatchNorm statistics, as the paper does.

    Args:
        group: What we ran, with a narrower network than the paper's.
        target: The paper's numbers.
        seeds: Seeds that served for nothing else.
        acc: Our average accuracy.
        fm: Our forgetting, or ``None`` where it was not measured.
        per_task: Our final accuracy of each task, a mean over the seeds.
    """

    group: Group
    target: Target
    seeds: tuple[int, ...]
    acc: Estimate
    fm: Estimate | None
    per_task: tuple[float, ...]

    @property
    def title(self) -> str:
        """Method and plug-in, such as ``ER + label smoothing, epsilon=0.5``."""
        cell = self.target.cell
        title = title_of(cell.method, cell.plugin)
        return f"{title}, {cell.variant}" if cell.variant else title

    @property
    def images(self) -> str:
        """``full size``, or what the images were resized to; cells that differ in it are never correlated."""
        size = self.group.data.partition("@")[2]
        return f"{size} x {size}" if size else FULL_SIZE

    @property
    def has_spread(self) -> bool:
        """Whether there are seeds enough for a standard deviation that means something."""
        return len(self.seeds) >= FEWEST_SEEDS

    def pair(self, measure: Measure) -> tuple[Estimate, float] | None:
        """Our ACC or FM and the paper's, or ``None`` where one of them is missing."""
        ours, paper = (self.acc, self.target.acc) if measure == "acc" else (self.fm, self.target.fm)
        return None if ours is None or paper is None else (ours, paper)


@dataclass(frozen=True)
class Agreement:
    """How our numbers agree with the paper's over several cells.

    Args:
        cells: Number of cells.
        correlation: Spearman's rank correlation, or ``None`` where it is not defined.
        difference: Mean of ours minus the paper's.
    """

    cells: int
    correlation: float | None
    difference: float

    @property
    def numbers(self) -> list[str]:
        """Correlation and difference, as shown."""
        return [NOTHING if self.correlation is None else f"{self.correlation:+.2f}", f"{self.difference:+.2f}"]

    def __str__(self) -> str:
        correlation, difference = self.numbers
        return f"rank correlation {correlation}, mean difference {difference}, {self.cells} cells"


def cells_beside_paper(runs: Sequence[MeasuredRun]) -> list[CellBeside]:
    """The cells of the paper that we have run, once for each size of the images.

    Of several groups in one cell, exact gradients go before cheaper ones, then more seeds before fewer.
    """
    found: dict[tuple[str, Cell], CellBeside] = {}
    for group, members in reported(runs).items():
        target = paper_target_of(group)
        acc = estimate([run.acc for run in members])
        if target is None or acc is None:
            continue
        tasks = zip(*(run.per_task for run in members), strict=True)
        beside = CellBeside(
            group=group,
            target=target,
            seeds=tuple(sorted(run.seed for run in members)),
            acc=acc,
            fm=estimate([run.fm for run in members]),
            per_task=tuple(sum(accuracies) / len(members) for accuracies in tasks),
        )
        key = beside.images, target.cell
        if key not in found or _preference(beside) < _preference(found[key]):
            found[key] = beside
    return list(found.values())


def paper_target_of(group: Group) -> Target | None:
    """The paper's numbers for the dataset, setting, buffer size, method and plug-in of a group, at whatever width."""
    data, _, size = group.data.partition("@")
    if size and not size.isdecimal():  # changed in another way, too
        return None
    variant = "" if group.options in WITHIN_A_CELL else group.options
    return paper_targets().get(Cell(group.setting, data, group.buffer_size, group.method, group.plugin, variant))


def by_images(cells: Sequence[CellBeside]) -> dict[str, list[CellBeside]]:
    """The cells by the size of their images, the full one first."""
    sizes = sorted({cell.images for cell in cells}, key=lambda images: (images != FULL_SIZE, images))
    return {images: [cell for cell in cells if cell.images == images] for images in sizes}


def agreement(cells: Sequence[CellBeside], measure: Measure) -> Agreement | None:
    """How a measure agrees with the paper's over cells that have it; ``None`` without any."""
    pairs = [pair for cell in cells if (pair := cell.pair(measure)) is not None]
    if not pairs:
        return None
    ours, paper = [value.mean for value, _ in pairs], [value for _, value in pairs]
    difference = sum(ours) / len(pairs) - sum(paper) / len(pairs)
    return Agreement(len(pairs), rank_correlation(ours, paper), difference)


def agreement_table(cells: Sequence[CellBeside]) -> str:
    """The agreement as Markdown: a row for each size of the images and, where there are several, for each dataset."""
    header = ["images", "network", "cells", f"of {FEWEST_SEEDS} seeds or more"]
    header += [
        f"{name} of {measure.upper()}" for measure in MEASURES for name in ("rank correlation", "mean difference")
    ]
    rows = []
    for images, members in by_images(cells).items():
        datasets = list(dict.fromkeys(cell.target.cell.data for cell in members))
        parts = {images if len(datasets) > 1 else f"{images}, {datasets[0]}": members}
        if len(datasets) > 1:
            parts |= {f"{images}, {d}": [cell for cell in members if cell.target.cell.data == d] for d in datasets}
        rows += [_agreement_row(name, part) for name, part in parts.items()]
    return markdown_table(header, rows)


def per_task_table(cells: Sequence[CellBeside]) -> str:
    """The final accuracy of each task, ours / the paper's, as Markdown: of the cells in the paper's appendix."""
    appendix = {target.cell: target.per_task for target in paper_table("per_task")}
    shown = [cell for cell in cells if len(appendix.get(cell.target.cell, ())) == len(cell.per_task)]
    if not shown:
        return ""
    tasks = [f"task {number + 1}" for number in range(len(shown[0].per_task))]
    rows = []
    for members in by_images(shown).values():
        for cell in members:
            pairs = zip(cell.per_task, appendix[cell.target.cell], strict=True)
            names = [cell.images, str(cell.group.buffer_size), cell.title, as_ranges(cell.seeds)]
            rows.append([*names, *(f"{ours:.1f} / {paper:.1f}" for ours, paper in pairs)])
    return markdown_table(["images", "M", "method", "seeds", *tasks], rows)


def _preference(cell: CellBeside) -> tuple[int, int]:
    options = cell.group.options
    return WITHIN_A_CELL.index(options) if options in WITHIN_A_CELL else 0, -len(cell.seeds)


def _agreement_row(name: str, cells: Sequence[CellBeside]) -> list[str]:
    networks = ", ".join(dict.fromkeys(cell.group.network for cell in cells))
    row = [name, networks, str(len(cells)), str(sum(cell.has_spread for cell in cells))]
    for measure in MEASURES:
        found = agreement(cells, measure)
        row += [NOTHING, NOTHING] if found is None else found.numbers
    return row
