"""The configuration files that the package ships, found by name: ``quickstart``, ``method/derpp``."""

import re
from pathlib import Path

from ddn_lightning.errors import ConfigurationError, did_you_mean

FOLDER = "configs"
SUFFIX = ".yaml"
RANGES = "tune/"  # files for ddn tune
PLANS = "plan/"  # files for ddn reproduce
STANDARD_INPUT = "-"
FILE_OR_NAME = re.compile(r"[\w./-]+")  # anything else may be YAML itself
COMMENT = re.compile(r"#\s*(.*\S)")
END_OF_SENTENCE = re.compile(r"(?<=\.)\s")


def shipped_folder() -> Path:
    """The folder with the files: in the installed package, in a clone at the top level."""
    package = Path(__file__).parents[1]
    return package / FOLDER if (package / FOLDER).is_dir() else package.parent / FOLDER


def shipped_names() -> list[str]:
    """The names of all files for ``ddn fit``: those at the top, then axis by axis."""
    folder = shipped_folder()
    names = [path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob(f"*{SUFFIX}")]
    names = [name for name in names if not name.startswith((RANGES, PLANS))]
    return sorted(names, key=lambda name: ("/" in name, name))


def find_config(value: str) -> str:
    """The file that a value of ``--config`` means: one of the current folder, else the shipped one of that name.

    Raises:
        ConfigurationError: If there is neither.
    """
    names = shipped_names()
    name = value.removeprefix(f"{FOLDER}/").removesuffix(SUFFIX)  # the path that it has in a clone means it, too
    if name in names and not Path(value).is_file():
        return str(shipped_folder() / f"{name}{SUFFIX}")
    if value != STANDARD_INPUT and FILE_OR_NAME.fullmatch(value) and not Path(value).exists():
        similar = did_you_mean(name, names)
        raise ConfigurationError(f"config must be a file, or a name that 'ddn configs' lists, got {value}{similar}")
    return value


def description_of(text: str) -> str:
    r"""The first sentence of the first comment of a file.

    >>> description_of("# Every sample is seen once. A task's\n# last batch is left out.\ndata:")
    'Every sample is seen once.'
    """
    comments = [COMMENT.search(line) for line in text.splitlines()]
    first = next((index for index, found in enumerate(comments) if found), len(comments))
    end = next((index for index in range(first, len(comments)) if not comments[index]), len(comments))
    return END_OF_SENTENCE.split(" ".join(found[1] for found in comments[first:end] if found))[0]
