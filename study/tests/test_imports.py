"""The study stands on the package, and the package does not know the study."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]


def imported(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    modules = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return modules | {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}


def test_the_package_imports_nothing_of_the_study() -> None:
    packages = {name.partition(".")[0] for path in (ROOT / "ddn_lightning").rglob("*.py") for name in imported(path)}
    assert packages.isdisjoint({"study", "benchmarks", "tests"})


def test_the_study_imports_public_names_only() -> None:
    for path in (ROOT / "study").glob("*.py"):
        nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        names = [f"{node.module}.{alias.name}" for node in nodes for alias in node.names]
        assert [name for name in names if any(part.startswith("_") for part in name.split("."))] == [], path
