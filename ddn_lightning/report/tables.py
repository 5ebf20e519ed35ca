"""Tables as Markdown, CSV and LaTeX, and the short forms of numbers in their cells."""

import csv
import io
from collections.abc import Mapping, Sequence

from ddn_lightning.errors import printable

NOTHING = "-"  # in a cell without a number
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet executes text that begins so
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
    "|": r"\textbar{}",
    "[": "{[}",  # after a line break, LaTeX would read an option
}


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], numbers_from: int | None = None) -> str:
    r"""A Markdown table; columns from ``numbers_from`` on are aligned to the right.

    >>> print(markdown_table(["a", "b"], [["x|y", "1"]], numbers_from=1), end="")
    | a | b |
    | --- | ---: |
    | x\|y | 1 |
    """
    num_words = len(header) if numbers_from is None else numbers_from
    rule = ["---" if column < num_words else "---:" for column in range(len(header))]
    lines = [header, rule, *([in_markdown(cell) for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def in_markdown(text: str) -> str:
    """Text on one line, with ``|`` and control characters escaped."""
    return printable(" ".join(text.split())).replace("|", "\\|")


def latex_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], alignment: str, comments: Sequence[str] = ()
) -> str:
    r"""A LaTeX table for the package booktabs, after its comments.

    >>> print(latex_table(["a_b", "c"], [["50 %", "1 ± 2"]], "lr", ["made by hand"]), end="")
    % needs \usepackage{booktabs}
    % made by hand
    \begin{tabular}{lr}
    \toprule
    a\_b & c \\
    \midrule
    50 \% & 1 $\pm$ 2 \\
    \bottomrule
    \end{tabular}
    """
    first, *lines = [" & ".join(map(in_latex, line)) + r" \\" for line in (header, *rows)]
    parts = [r"% needs \usepackage{booktabs}", *(f"% {' '.join(comment.split())}" for comment in comments)]
    parts += [rf"\begin{{tabular}}{{{alignment}}}", r"\toprule", first, r"\midrule", *lines]
    return "\n".join([*parts, r"\bottomrule", r"\end{tabular}"]) + "\n"


def in_latex(text: str) -> str:
    """Text on one line, with LaTeX's special characters escaped."""
    return "".join(LATEX.get(letter, letter) for letter in " ".join(text.split()))


def csv_table(records: Sequence[Mapping[str, object]]) -> str:
    """A CSV table with the keys of the first record as header; ``None`` is an empty cell.

    Text that a spreadsheet would take for a formula gets an apostrophe before it, except options such as ``--lr 0.1``.

    >>> print(csv_table([{"class": "=1+1", "accuracy": -2.5}]), end="")
    class,accuracy
    '=1+1,-2.5
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, list(records[0]) if records else [], lineterminator="\n")
    writer.writeheader()
    for record in records:
        writer.writerow({name: _inert(value) for name, value in record.items()})
    return text.getvalue()


def _inert(cell: object) -> object:
    is_formula = isinstance(cell, str) and cell.startswith(FORMULA) and not cell.startswith("--")
    return f"'{cell}" if is_formula else cell


def rounded(value: float | None) -> float | None:
    """A number for CSV and JSON: four decimals."""
    return None if value is None else round(value, 4)


def as_ranges(numbers: Sequence[int]) -> str:
    """Sorted integers, with ranges of three and more abbreviated.

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


def duration(seconds: float) -> str:
    """A duration in two units.

    >>> duration(75.0), duration(4000.0), duration(3.21)
    ('1 min 15 s', '1 h 6 min', '3.2 s')
    """
    whole = round(seconds)
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"
