"""The memory of a method as a part of its checkpoint."""

from collections.abc import Callable
from typing import Any

from ddn_lightning.construction import construction_of
from ddn_lightning.memory.memory import MADE, Memory, check_made
from ddn_lightning.samples import Samples


class StoredMemory:
    """Saves a memory with the class and arguments that it was made by.

    Args:
        memory: The memory.
        check: Refuses restored samples that do not fit the data.
    """

    def __init__(self, memory: Memory, check: Callable[[Samples], None]) -> None:
        self.memory = memory
        self.check = check

    def state_dict(self) -> dict[str, Any]:
        """The samples, and how the memory was made."""
        return {**self.memory.state_dict(), MADE: construction_of(self.memory)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the samples; refuse those of another memory or of other data."""
        check_made(self.memory, state)
        self.memory.load_state_dict({name: value for name, value in state.items() if name != MADE})
        if len(self.memory):
            self.check(self.memory[self.memory.slots])
