"""The device that a command runs on."""

import torch

from ddn_lightning.errors import ConfigurationError

AUTO = "auto"
HELP = "For example cuda:0; auto uses a GPU if present."


def find_device(name: str) -> torch.device:
    """The device of this name, if this machine has it; ``auto`` for a GPU if there is one."""
    if name == AUTO:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigurationError(f"device must be one of this machine's, such as cpu, got {name}: {reason}") from error
    return device
