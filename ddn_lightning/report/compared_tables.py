"""A comparison as Markdown, CSV or LaTeX."""

import csv
import io
from collections.abc import Sequence

from ddn_lightning.report.compared import Compared, ComparedRow
from ddn_lightning.report.statistic import Estimate

HEADER = ("group", "n", "seeds", "ACC ↑", "FM ↓", "against", "Δ ACC", "Δ FM", "CPU min", "cost")
EXPLANATION = (
    "ACC and FM in percent: mean ± standard deviation. Δ: difference to what it is compared with, paired by seed: mean "
    "[95 % confidence interval by Student's t] (seeds in common). 'difference' only where the interval excludes 0 with "
    "at least 3 seeds; intervals are not corrected for how many of them are read. Cost: processor time in the "
    "baseline's on the same seeds, evaluation included: what a step costs in the baseline's steps."
)
NOTHING = "-"
ESTIMATES = ("acc", "fm", "acc_difference", "fm_difference", "cpu_minutes", "cost")
LATEX = {
    "\\": r"\textbackslash{}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "Δ": r"$\Delta$",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "[": "{[}",  # not the option of a line break
}


def as_markdown(comparison: Compared) -> str:
    """A table to read, what its numbers mean, and what it leaves out."""
    lines = [HEADER, ["---"] * len(HEADER), *([_in_markdown(cell) for cell in cells(row)] for row in comparison.rows)]
    text = "".join(f"| {' | '.join(line)} |\n" for line in lines) + f"\n{EXPLANATION}\n"
    if comparison.left_out:
        text += "\nLeft out:\n\n" + "".join(f"- {_in_markdown(line)}\n" for line in comparison.left_out)
    return text


def as_latex(comparison: Compared) -> str:
    """A table for a paper, which needs the package booktabs; what it leaves out stands in comments."""
    lines = [" & ".join(map(_in_latex, line)) + r" \\" for line in (HEADER, *map(cells, comparison.rows))]
    comments = [EXPLANATION, *(f"Left out: {line}" for line in comparison.left_out)]
    parts = [r"% needs \usepackage{booktabs}", *(f"% {' '.join(comment.split())}" for comment in comments)]
    parts += [r"\begin{tabular}{lrlllllllr}", r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule"]
    return "\n".join([*parts, r"\end{tabular}"]) + "\n"


def as_csv(comparison: Compared) -> str:
    """One line per row, to compute with; nothing stands where there is no number."""
    text = io.StringIO()
    records = [_record(row) for row in comparison.rows]
    writer = csv.DictWriter(text, list(records[0]) if records else ["group"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def cells(row: ComparedRow) -> list[str]:
    """The cells of a row, in the order of ``HEADER``."""
    return [
        row.title,
        str(row.acc.n),
        as_ranges(row.seeds),
        _measured(row.acc),
        _measured(row.fm),
        row.against or NOTHING,
        _difference(row.acc_difference),
        _difference(row.fm_difference),
        _measured(row.cpu_minutes),
        NOTHING if row.cost is None else f"{row.cost.mean:.2f}",
    ]


def as_ranges(numbers: Sequence[int]) -> str:
    """Numbers in order, in short.

    >>> as_ranges([20, 21, 22, 30]), as_ranges([1, 2])
    ('20-22 30', '1 2')
    """
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1].append(number)
        else:
            spans.append([number])
    return " ".join(f"{span[0]}-{span[-1]}" if len(span) > 2 else " ".join(map(str, span)) for span in spans)


def _measured(value: Estimate | None) -> str:
    if value is None:
        return NOTHING
    return f"{value.mean:.2f}" if value.std is None else f"{value.mean:.2f} ± {value.std:.2f}"


def _difference(value: Estimate | None) -> str:
    if value is None:
        return NOTHING
    if value.low is None or value.high is None:
        return f"{value.mean:+.2f} ({value.n}), {value.verdict}"
    return f"{value.mean:+.2f} [{value.low:+.2f}, {value.high:+.2f}] ({value.n}), {value.verdict}"


def _in_markdown(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _in_latex(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in " ".join(text.split()))


def _record(row: ComparedRow) -> dict[str, str | int | float | None]:
    record: dict[str, str | int | float | None] = {
        "group": row.group,
        "statistics": row.statistics,
        "seeds": " ".join(map(str, row.seeds)),
        "against": row.against,
    }
    for name in ESTIMATES:
        value: Estimate | None = getattr(row, name)
        for part in ("n", "mean", "std", "error", "low", "high"):
            number = None if value is None else getattr(value, part)
            record[f"{name}_{part}"] = None if number is None else round(number, 4)
        if name.endswith("_difference"):
            record[f"{name}_verdict"] = None if value is None else value.verdict
    return record
