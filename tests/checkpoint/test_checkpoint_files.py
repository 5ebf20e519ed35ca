"""A checkpoint is read without executing anything in it, and in the memory of its size, or refused in one line."""

import resource
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from damage import CANARY, damaged
from tiny import Fit, TinySequence, quiet_trainer, small_net

import ddn_lightning
from ddn_lightning import ER, ConfigurationError, ReplayMethod, TimmBackbone
from ddn_lightning.checkpoint.construction import find_imported
from ddn_lightning.checkpoint.files import read_checkpoint

FEW, MANY = 40, 1000
REWRITTEN = (5, 7)  # kinds of damage with right checksums: whoever forges a file gets any error
PEAK_RESET = Path("/proc/self/clear_refs")


def nested() -> list[Any]:
    """Lists of the same ten lists, 40 deep: a file of 2 KB."""
    one: list[Any] = [1]
    for _ in range(40):
        one = [one] * 10
    return one


class Canary:
    def __reduce__(self) -> tuple[Any, ...]:
        return open, ("executed.txt", "w")


FORGED: dict[str, tuple[Callable[[], Any], str]] = {
    "code": (lambda: {"a": Canary()}, "it contains other things than tensors and plain values"),
    "module": (lambda: {"a": small_net()}, "it contains other things than tensors and plain values"),
    "a list": (lambda: [1, 2], "it contains a list"),
    "expanded": (lambda: {"a": torch.zeros(1).expand(10**9)}, "has only 4 bytes"),
    "without values": (lambda: {"a": torch.zeros(10**9, device="meta")}, "a tensor without values"),
    "aliases": (lambda: {"a": nested()}, "its values contain each other"),
}


@pytest.mark.parametrize("name", FORGED)
def test_what_would_be_executed_or_take_more_memory_than_the_file_is_refused(name: str) -> None:
    make, reason = FORGED[name]
    torch.save(make(), "forged.ckpt")
    with pytest.raises(ConfigurationError, match=reason) as error:
        read_checkpoint("forged.ckpt")
    assert "\n" not in str(error.value)
    assert "weights_only" not in "".join(map(str, (error.value, error.value.__cause__)))
    assert not Path("executed.txt").exists()


def test_a_compressed_archive_is_refused_before_it_is_unpacked() -> None:
    torch.save({"a": torch.zeros(10**6)}, "plain.ckpt")
    with zipfile.ZipFile("plain.ckpt") as plain, zipfile.ZipFile("small.ckpt", "w", zipfile.ZIP_DEFLATED) as small:
        for name in plain.namelist():
            small.writestr(name, plain.read(name))
    assert Path("small.ckpt").stat().st_size < 10**5
    with pytest.raises(ConfigurationError, match="its entries are compressed"):
        read_checkpoint("small.ckpt")


def test_an_entry_that_claims_more_than_the_file_is_refused() -> None:
    torch.save({"a": torch.zeros(10)}, "plain.ckpt")
    with zipfile.ZipFile("plain.ckpt") as plain, zipfile.ZipFile("large.ckpt", "w") as large:
        for name in plain.namelist():
            large.writestr(name, plain.read(name))
        large.filelist[-1].file_size = 10**12  # in the archive's directory
    with pytest.raises(ConfigurationError, match="its entries are larger than the file"):
        read_checkpoint("large.ckpt")


def test_views_tied_weights_and_empty_tensors_are_read() -> None:
    weight = torch.arange(6.0).reshape(2, 3)
    contents = {"a": weight, "b": weight, "c": weight[1:], "d": weight.t(), "e": torch.zeros(0, 5), "f": {1, "x"}}
    torch.save(contents, "good.ckpt")
    found = read_checkpoint("good.ckpt")
    assert all(torch.equal(found[name], contents[name]) for name in "abcde")
    assert found["f"] == contents["f"]


@pytest.fixture
def saved(fit: Fit) -> ReplayMethod:
    method = fit(lambda: ER(small_net(), num_classes=6, buffer_size=8), TinySequence(batch_size=12))
    method.trainer.save_checkpoint("good.ckpt")
    return method


def test_a_flipped_bit_in_a_finite_weight_is_noticed_by_every_reader(saved: ReplayMethod) -> None:
    content = bytearray(Path("good.ckpt").read_bytes())
    place = content.index(saved.head.weight.detach().numpy().tobytes())
    content[place] ^= 1
    Path("flipped.ckpt").write_bytes(content)
    for read in (
        lambda: ddn_lightning.load("flipped.ckpt"),
        lambda: ER.load_from_checkpoint("flipped.ckpt"),
        lambda: quiet_trainer().fit(ER(small_net(), 6), TinySequence(batch_size=12), ckpt_path="flipped.ckpt"),
        lambda: quiet_trainer().test(ER(small_net(), 6), TinySequence(batch_size=12), ckpt_path="flipped.ckpt"),
        lambda: quiet_trainer().validate(ER(small_net(), 6), TinySequence(batch_size=12), ckpt_path="flipped.ckpt"),
    ):
        with pytest.raises(ConfigurationError, match=r"^flipped.ckpt is damaged, .* has changed since it was written$"):
            read()


def test_a_trainer_executes_nothing_even_if_it_is_told_to(saved: ReplayMethod) -> None:
    torch.save({**torch.load("good.ckpt", weights_only=True), "evil": Canary()}, "evil.ckpt")
    with pytest.raises(ConfigurationError, match="other things than tensors"):
        quiet_trainer().fit(ER(small_net(), 6), TinySequence(batch_size=12), ckpt_path="evil.ckpt", weights_only=False)
    assert not Path("executed.txt").exists()


def test_the_plug_in_of_a_user_is_kept(fit: Fit) -> None:
    from lightning.pytorch.plugins import AsyncCheckpointIO

    given = AsyncCheckpointIO()
    method = fit(lambda: ER(small_net(), 6), TinySequence(batch_size=12), plugins=[given])
    assert method.trainer.strategy.checkpoint_io is given


def bad_endings(content: bytes, numbers: range, suffix: str, read: Callable[[str], object]) -> list[str]:
    """The damages that end otherwise than in one line, or in a whole file, and more memory than file and 300 MB."""
    if PEAK_RESET.exists():  # on Linux, where the peak is that of the whole process otherwise
        PEAK_RESET.write_text("5")
    bad, before = [], peak_memory()
    for number in numbers:
        path = Path(f"damaged{suffix}")
        path.write_bytes(damaged(content, number))
        try:
            read(str(path))
            if suffix == ".ckpt" and path.read_bytes() != content and number % 8 in (0, 6):
                bad.append(f"{number}: read")
        except ConfigurationError as error:
            if "\n" in str(error) or "weights_only" in str(error):
                bad.append(f"{number}: {error}")
        except Exception as error:  # the caller lists them
            if number % 8 in REWRITTEN:
                continue
            bad.append(f"{number}: {type(error).__name__}: {error}")
    memory = peak_memory() - before
    print(f"{len(numbers)} damaged {suffix} of {len(content)} bytes: {memory} bytes more at the peak")
    return [*bad, f"{memory} bytes of memory"] if memory > len(content) + 300 * 2**20 else bad


def peak_memory() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.fixture
def canary(monkeypatch: pytest.MonkeyPatch, imported: list[str]) -> Iterator[list[str]]:
    """Nothing is executed or imported, except encodings by zipfile."""
    Path(f"{CANARY.decode()}.py").write_text("open('executed.txt', 'w')\n")
    monkeypatch.syspath_prepend(Path().absolute())
    yield imported
    assert not [name for name in imported if name.partition(".")[0] != "encodings"]
    assert not Path("executed.txt").exists()


def test_an_unknown_name_of_this_package_is_not_searched_for(canary: list[str]) -> None:
    assert find_imported("ddn_lightning.ImaceTransform") is None
    assert not canary


@pytest.mark.parametrize("how_many", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
def test_a_damaged_checkpoint_is_refused_in_one_line(saved: ReplayMethod, how_many: int, canary: list[str]) -> None:
    content = Path("good.ckpt").read_bytes()
    ddn_lightning.load("good.ckpt")
    canary.clear()
    assert not bad_endings(content, range(how_many), ".ckpt", ddn_lightning.load)


@pytest.mark.parametrize("how_many", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
@pytest.mark.parametrize("suffix", [".pt", ".legacy.pt", ".safetensors"])
def test_a_damaged_file_of_weights_is_refused_in_one_line(suffix: str, how_many: int, canary: list[str]) -> None:
    timm, save_file = pytest.importorskip("timm"), pytest.importorskip("safetensors.torch").save_file
    state = timm.create_model("test_resnet").state_dict()
    if suffix == ".safetensors":
        save_file(state, "good")
    else:
        torch.save(state, "good", _use_new_zipfile_serialization=suffix == ".pt")
    content = Path("good").read_bytes()
    TimmBackbone("test_resnet", pretrained="good" if suffix != ".safetensors" else _renamed("good", suffix))
    canary.clear()
    numbers = range(how_many // 3 + 1)
    assert not bad_endings(content, numbers, suffix, lambda path: TimmBackbone("test_resnet", pretrained=path))


def _renamed(path: str, suffix: str) -> str:
    return str(Path(path).rename(path + suffix))
