"""What each group of runs is compared with, and how to call it."""

from collections import Counter
from collections.abc import Mapping, Sequence

from ddn_lightning.errors import ConfigurationError
from ddn_lightning.report.groups import COLUMN_KEYS, COMPARED_PREFIXES, Difference, differences
from ddn_lightning.report.paper import METHODS
from ddn_lightning.report.seed_group import TEST_BED, SeedGroup

Baselines = Mapping[SeedGroup, SeedGroup | None]


def baselines_of(groups: Sequence[SeedGroup], wanted: str | None = None) -> Baselines:
    """What each group is compared with, on the same test bed; a baseline is its own.

    Args:
        groups: The groups.
        wanted: Name of the baseline: as :func:`names_of` calls it, of its method, or of one of its runs. By
            default each method is compared with its plain form: alone, with its default options as far as possible.

    Raises:
        ConfigurationError: If no group has that name.
    """
    if wanted is None:
        candidates = [group for group in groups if group.is_plain]
    else:
        labels = names_of(groups)
        candidates = [group for group in groups if labels[group].casefold() == wanted.casefold()]
        candidates = candidates or [group for group in groups if _is_called(group, wanted)]
        if not candidates and groups:
            known = "; ".join(labels.values())
            raise ConfigurationError(f"baseline must be the name of a run, or one of: {known}; got {wanted}")
    found: dict[tuple[str, str], SeedGroup] = {}
    for group in sorted(candidates, key=_rank):
        found.setdefault(_key(group, wanted), group)
    return {group: found.get(_key(group, wanted)) for group in groups}


def _rank(group: SeedGroup) -> tuple[bool, bool, int, int]:
    """The plainest first; what was evaluated with calibrated statistics alone is no reference for the others."""
    return not group.is_plain, group.results.statistics == "memory", group.unusual, -len(group.runs)


def _key(group: SeedGroup, wanted: str | None) -> tuple[str, str]:
    return group.test_bed, group.results.method if wanted is None else ""


def _is_called(group: SeedGroup, wanted: str) -> bool:
    results = group.results
    names = [group.title, results.title, *(run.name for run in group.runs.values())]
    if results.plugin is None:
        names.append(METHODS.get(results.method, results.method))
    return wanted.casefold() in (name.casefold() for name in names)


def names_of(groups: Sequence[SeedGroup]) -> dict[SeedGroup, str]:
    """A name for each group: the method, and the settings that are not those of its plain form."""
    baselines = baselines_of(groups)
    settings = [
        {
            key: value
            for key, value in group.first.config.items()
            if key.startswith(COMPARED_PREFIXES) and key not in COLUMN_KEYS
        }
        for group in groups
    ]
    varied = [one for one in differences(settings) if len({value for value in one.values if value}) > 1]
    sizes = {(group.results.dataset, group.results.buffer_size) for group in groups}
    places = {group: number for number, group in enumerate(groups)}
    names = {}
    for group, number in places.items():
        baseline = baselines[group]
        told = _told(varied, number, None if baseline is None else places[baseline])
        where = f"{group.results.dataset}, memory {group.results.buffer_size}: " if len(sizes) > 1 else ""
        names[group] = where + ", ".join([group.title, *told])
    counts = Counter(names.values())
    return {group: f"{name} ({group.first.name})" if counts[name] > 1 else name for group, name in names.items()}


def _told(varied: Sequence[Difference], number: int, baseline: int | None) -> list[str]:
    """The settings to name a group by: those of its test bed, and those in which it is not plain."""
    chosen = [
        one
        for one in varied
        if one.values[number]
        and (baseline is None or one.key.startswith(TEST_BED) or one.values[number] != one.values[baseline])
    ]
    return [f"{one.key.rpartition('.')[2]} {one.values[number]}" for one in chosen]
