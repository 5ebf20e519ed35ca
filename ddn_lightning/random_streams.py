"""Independent random streams by name, so that one part's draws never shift another's."""

import hashlib

import torch

from ddn_lightning.checkpoint import checks

OLD_MEMORY = "old memory"  # the draw of old memory, with soft labels or, as their control, with hard ones


def generator_for(seed: int, purpose: str) -> torch.Generator:
    """A generator that depends on both the run's seed and what it is for."""
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:4], "little"))  # torch uses 32 bits of a seed, no more


class RandomStreams:
    """Named generators on the host, each seeded by the run's seed and its own name.

    A part that is switched off draws from its stream no more, and every other stream stays as it was: this is what
    makes a method with a disabled plug-in equal the method without it, bit for bit.

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

    def state_dict(self) -> dict[str, object]:
        """Seed and position of every stream in use."""
        states = {name: generator.get_state() for name, generator in self._generators.items()}
        return {"seed": self.seed, "states": states}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Continue every stream where it was saved."""
        checks.mapping("random streams", state, ("seed", "states"))
        seed = checks.integer("random streams/seed", state["seed"], most=checks.LARGEST_SEED)
        states = checks.mapping("random streams/states", state["states"])
        generators = {n: checks.generator_state(f"random streams/states/{n}", s) for n, s in states.items()}
        self.seed, self._generators = seed, generators
