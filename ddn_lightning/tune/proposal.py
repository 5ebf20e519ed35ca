"""Proposes the next values of a search: a pure function of the trials so far."""

import hashlib
from collections.abc import Sequence

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial

from ddn_lightning.tune.ranges import Range, Value

DIRECTION = StudyDirection.MAXIMIZE


def propose(ranges: Sequence[Range], ended: Sequence[FrozenTrial], count: int, seed: int) -> list[dict[str, Value]]:
    """The values of the next ``count`` trials, by TPE (Bergstra et al. 2011) as Optuna implements it.

    The sampler is made anew for each trial, seeded by the trial's number. A search that is killed and restarted thus
    proposes what an undisturbed one would. Trials of one call do not know each other's results, but keep apart.

    Args:
        ranges: The ranges.
        ended: All trials that have ended, in their order; random values are proposed for the first ten.
        count: Number of trials.
        seed: Seed of the search. Studies with the same seed try the same values first, as far as they share ranges.
    """
    distributions = distributions_of(ranges)
    study = optuna.create_study(direction=DIRECTION)  # in memory
    study.add_trials(ended)
    proposals = []
    for number in range(len(ended), len(ended) + count):
        study.sampler = optuna.samplers.TPESampler(seed=_seed_of(seed, number))
        values = study.ask(distributions).params
        proposals.append({one.option: one.rounded(values[one.option]) for one in ranges})
    return proposals


def distributions_of(ranges: Sequence[Range]) -> dict[str, BaseDistribution]:
    """Optuna's distributions by option."""
    return {one.option: _distribution(one) for one in ranges}


def _distribution(one: Range) -> BaseDistribution:
    if one.choices:
        return CategoricalDistribution(one.choices)
    if one.is_integer:
        return IntDistribution(int(one.low), int(one.high), log=one.log)
    return FloatDistribution(one.low, one.high, log=one.log)


def _seed_of(seed: int, number: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {number}".encode()).digest()[:4], "big")
