"""Backbones from a library of models, with weights from its site or from a file."""

import difflib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Self

import torch
from torch import Tensor, nn

from ddn_lightning.checkpoint.files import read_archive, reason_of
from ddn_lightning.errors import ConfigurationError
from ddn_lightning.networks.backbone import Backbone

MOST_NAMES = 3  # weights named in a message
SUGGESTIONS = 5
ARCHIVE = b"PK"  # the first bytes of a file of torch.save since torch 1.6


class PretrainedBackbone(Backbone, ABC):
    """A model of a library without its classifier.

    A frozen backbone stays in evaluation mode: its BatchNorm statistics do not move, and its dropout is off. The
    weights are in the checkpoint of a run, so a trained method loads without the file and without the site.

    Args:
        name: Name of the model in the library.
        pretrained: Whether to fetch the library's weights, or the file of a state dict. Weights of the classifier in
            it are left out.
        frozen: Whether to keep the weights and the BatchNorm statistics as they are.
        arguments: Further arguments of the model.
    """

    sources: ClassVar[tuple[str, ...]] = ()  # further arguments of the library's model that read or fetch weights

    def __init__(
        self,
        name: str,
        pretrained: bool | str | Path = False,
        frozen: bool = False,
        arguments: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.frozen = frozen
        further = arguments or {}
        self.takes_colour = further.get("in_chans", 3) == 3  # timm's argument
        try:
            self.model, self.feature_dim, classifier = self.build(name, pretrained is True, further)
        except ConfigurationError:
            raise
        except (OSError, RuntimeError, TypeError, ValueError, AssertionError) as error:
            raise ConfigurationError(_unbuilt(f"{type(self).__name__} {name}", pretrained is True, error)) from error
        if not isinstance(pretrained, bool):
            load_weights(self.model, Path(os.path.expanduser(pretrained)), classifier)
        self.constructor_arguments.pop("pretrained", None)  # a checkpoint has the weights
        if frozen:
            self.requires_grad_(False).eval()

    @classmethod
    def without_weights(cls, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments from a checkpoint, without those that read or fetch weights, also of the library's model."""
        kept = super().without_weights(arguments)
        if isinstance(further := kept.get("arguments"), dict):
            kept["arguments"] = {name: value for name, value in further.items() if name not in cls.sources}
        return kept

    @abstractmethod
    def build(self, name: str, pretrained: bool, arguments: Mapping[str, Any]) -> tuple[nn.Module, int, Sequence[str]]:
        """The model without its classifier, the size of its features, and the classifier's names in a state dict."""

    def forward(self, images: Tensor) -> Tensor:
        """Features (batch, feature_dim). Grey images are repeated for the three channels of a colour image."""
        is_repeated = self.takes_colour and images.shape[1] == 1
        features: Tensor = self.model(images.expand(-1, 3, -1, -1) if is_repeated else images)
        return features

    def train(self, mode: bool = True) -> Self:
        """Stays in evaluation mode if frozen."""
        return super().train(mode and not self.frozen)


def check_name(name: str, known: Iterable[str], library: str) -> None:
    """Refuse an unknown model, and suggest similar names."""
    names = list(known)
    if name not in names:
        similar = difflib.get_close_matches(name, names, SUGGESTIONS)
        hint = f", such as {', '.join(similar)}" if similar else ""
        raise ConfigurationError(f"name must be a model of {library}{hint}, got {name}")


def load_weights(model: nn.Module, path: Path, classifier: Sequence[str]) -> None:
    """Load a state dict from a file, without executing anything in it.

    Args:
        model: The model without its classifier.
        path: File of ``torch.save`` or safetensors: a state dict, or a checkpoint with one at ``state_dict``.
        classifier: Names of its parts, whose weights are left out.
    """
    left_out = tuple(f"{part}." for part in classifier)
    state = {name: value for name, value in _read(path).items() if not name.startswith(left_out)}
    own = model.state_dict()
    misfits = {
        "lacks": [name for name in own if name not in state],
        "has no place for": [name for name in state if name not in own],
        "has another shape of": [n for n in own if n in state and getattr(state[n], "shape", None) != own[n].shape],
    }
    found = [f"{what} {_listed(names)}" for what, names in misfits.items() if names]
    if found:
        raise ConfigurationError(
            f"pretrained must be a file with the weights of this model, but {path} {'; '.join(found)}"
        )
    try:
        model.load_state_dict(state)
    except RuntimeError as error:  # values that cannot be copied, such as sparse ones
        reason = " ".join(str(error).split())
        raise ConfigurationError(
            f"pretrained must be a file with the weights of this model, but {path}: {reason}"
        ) from error


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            state = _contents(path, file)
        state = state.get("state_dict", state) if isinstance(state, dict) else state
        if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
            raise ValueError(f"it contains a {type(state).__name__}, not a state dict")
    except Exception as error:  # of a dozen kinds for damaged files, see read_checkpoint
        raise ConfigurationError(
            f"pretrained must be true, false or a file of weights, got {path}, which cannot be read: {reason_of(error)}"
        ) from None
    return state


def _contents(path: Path, file: BinaryIO) -> Any:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file  # comes with timm

        return load_file(path)
    if file.peek(len(ARCHIVE))[: len(ARCHIVE)] == ARCHIVE:  # type: ignore[attr-defined]  # a BufferedReader
        return read_archive(file)
    return torch.load(file, map_location="cpu", weights_only=True)  # the format of torch before 1.6


def _unbuilt(given: str, is_fetched: bool, error: Exception) -> str:
    reason = str(error).partition("\n")[0]
    if not is_fetched or not isinstance(error, OSError | RuntimeError):
        return f"{given} cannot be built: {reason}"
    return f"the weights of {given} cannot be fetched: {reason}; give a file: --model.backbone.pretrained <path>"


def _listed(names: list[str]) -> str:
    """The first names, and the number of the others.

    >>> _listed(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
