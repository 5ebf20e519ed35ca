import pytest
import torch
import torchvision
from tiny import Fit, TinySequence
from torch import nn

from ddn_lightning import ER, Forgetting, ResNet18, SmallNet


@pytest.mark.parametrize(
    ("width", "num_classes", "expected"),
    [(64, 10, 11_173_962), (64, 100, 11_220_132), (64, 200, 11_271_432), (20, 10, 1_094_750)],
)
def test_resnet18_with_a_linear_head_has_the_published_size(width: int, num_classes: int, expected: int) -> None:
    backbone = ResNet18(width=width)
    head = nn.Linear(backbone.feature_dim, num_classes)
    assert sum(p.numel() for module in (backbone, head) for p in module.parameters()) == expected


@pytest.mark.parametrize("size", [32, 64])
def test_resnet18_pools_whatever_is_left_of_the_image(size: int) -> None:
    assert ResNet18(width=4)(torch.rand(2, 3, size, size)).shape == (2, 32)


def test_small_net_has_no_batch_norm_and_treats_samples_one_by_one() -> None:
    net = SmallNet(in_channels=1)
    images = torch.rand(5, 1, 8, 8)
    assert net(images).shape == (5, net.feature_dim)
    assert torch.allclose(net(images)[2:3], net(images[2:3]), atol=1e-6)
    assert not any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in net.modules())


def test_a_torchvision_network_is_a_backbone(fit: Fit) -> None:
    def build() -> ER:
        backbone = torchvision.models.shufflenet_v2_x0_5()
        backbone.conv1[0] = nn.Conv2d(1, 24, 3, padding=1)
        backbone.fc, backbone.feature_dim = nn.Identity(), 1024
        return ER(backbone, num_classes=6, buffer_size=20)

    method = fit(build, TinySequence(batch_size=12), callbacks=[Forgetting(statistics="both")])
    assert method.accuracy_matrix[-1].isfinite().all()
    assert method.calibrated_accuracy_matrix[-1].isfinite().all()
