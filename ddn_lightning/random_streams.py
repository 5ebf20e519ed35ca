"""Independent named random streams: draws from one never shift another."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

OLD_MEMORY = "old memory"  # the stream of draws from old memory, for a distiller or for old_memory_weight


def generator_for(seed: int, purpose: str) -> torch.Generator:
    """A generator seeded by the run's seed and a purpose."""
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:4], "little"))  # torch uses only 32 bits of a seed


class RandomStreams:
    """Named generators on the host, each seeded by the run's seed and its name.

    A component that is disabled does not shift the streams of the others, so a method with a disabled distiller equals
    the method without one, bit for bit.

    Args:
        seed: Seed of the run.

    Example:
        >>> streams = RandomStreams(seed=0)
        >>> first = torch.rand(3, generator=streams["augment"])
        >>> torch.equal(first, torch.rand(3, generator=RandomStreams(seed=0)["augment"]))
        True
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._generators: dict[str, torch.Generator] = {}

    def __getitem__(self, name: str) -> torch.Generator:
        if name not in self._generators:
            self._generators[name] = generator_for(self.seed, name)
        return self._generators[name]

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Within it, draw from new streams of the same seed: these do not advance."""
        generators, self._generators = self._generators, {}
        try:
            yield
        finally:
            self._generators = generators

    def state_dict(self) -> dict[str, Any]:
        """Seed and position of every stream in use."""
        states = {name: generator.get_state() for name, generator in self._generators.items()}
        return {"seed": self.seed, "states": states}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue every stream where it was saved."""
        self.seed, self._generators = state["seed"], {}
        for name, saved in state["states"].items():
            self[name].set_state(saved.cpu())
