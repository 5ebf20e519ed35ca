"""The bytes that a run records are those of its tensors, counted by hand."""

from every_method import build
from tiny import Fit, small_net

from ddn_lightning import CLSER, ER, NCM, SLDA, DataDistillNet, DERPlusPlus, Finetune, FrozenFeatures, ICaRL
from ddn_lightning.callbacks.stored_bytes import stored_bytes

SAMPLE = 64 + 8 + 8 + 8  # an 8x8 image, its label, task and slot
NETWORK = 4 * sum(parameter.numel() for parameter in small_net().parameters()) + 4 * (8 * 6 + 6)


def test_images_outputs_and_copies_of_the_network(fit: Fit) -> None:
    def found(*arguments: object, **options: object) -> dict[str, int]:
        return stored_bytes(fit(lambda: build(*arguments, backbone=small_net(), **options)))  # type: ignore[arg-type]

    assert found(ER) == {"samples": 10 * SAMPLE, "others": 0}
    assert found(DERPlusPlus) == {"samples": 10 * (SAMPLE + 6 * 4), "others": 0}
    assert found(CLSER) == {"samples": 10 * SAMPLE, "others": 2 * NETWORK}
    assert found(Finetune) == {"samples": 0, "others": 0}
    assert found(ER, DataDistillNet)["others"] > 0
    means = 6 * 8 * 4
    icarl = found(ICaRL)
    assert icarl["others"] == NETWORK + means + 6  # the last network, the means, and which classes are old
    assert 0 < icarl["samples"] <= 10 * SAMPLE
    assert found(NCM) == {"samples": 0, "others": means + 6 * 4}
    assert found(SLDA) == {"samples": 0, "others": means + 6 * 4 + 8 * 8 * 4}


def test_features_take_their_own_size(fit: Fit) -> None:
    from test_feature_cache import PlainSequence

    method = fit(lambda: build(ER, backbone=FrozenFeatures(small_net())), PlainSequence(batch_size=6))
    assert stored_bytes(method) == {"samples": 10 * (8 * 4 + 3 * 8), "others": 0}
