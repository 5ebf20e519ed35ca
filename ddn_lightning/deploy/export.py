"""Export a trained method to a file that needs neither this package nor its classes: ``.onnx`` or ``.pt2``."""

import json
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from ddn_lightning.deploy.exported_model import EXAMPLE_SIZE, SHAPES, ExportedModel, first_line, graph_of
from ddn_lightning.deploy.predict import trained_shape
from ddn_lightning.distill.learner import Predicting
from ddn_lightning.errors import ConfigurationError, SavingError
from ddn_lightning.networks.gradients import evaluating
from ddn_lightning.runs.files import atomic_write

INPUT, OUTPUT = "images", "probabilities"  # names in an ONNX file
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
CHECKED_SIZES = (1, 5)  # of batches
TOLERANCE = 1e-5  # of a probability


@dataclass(frozen=True)
class Format:
    """How files of one kind are written and read."""

    write: Callable[[ExportedProgram, Path, Mapping[str, str]], None]
    read: Callable[[Path], Callable[[Tensor], Tensor]]  # the model in a file, as a function of raw images
    packages: tuple[str, ...] = ()


def export(method: Predicting, path: str | Path) -> float:
    """Write a method as a file that predicts without this package, and check it.

    The file takes raw ``uint8`` images (batch, channels, height, width) in batches of any size, and returns
    probabilities (batch, num_classes), as :func:`predict` does; see :class:`ExportedModel`. Its metadata, in ONNX
    ``metadata_props`` or in the ``extra_files`` of a ``.pt2``, are ``class_names`` and ``image_shape``, both JSON,
    ``method`` and ``ddn_lightning``, the version of this package.

    Args:
        method: A trained method.
        path: A file that ends in ``.onnx`` or ``.pt2``; an existing one is replaced.

    Returns:
        The largest difference of a probability between the file and the method, on random images: 1e-5 at most.
    """
    shape = trained_shape(method, "export")
    metadata = {
        "class_names": json.dumps(method.label_names),
        "image_shape": json.dumps(shape),
        "method": type(method).__name__,
        "ddn_lightning": version("ddn-lightning"),
    }
    return write_model(ExportedModel(method), Path(os.path.expanduser(path)), metadata, shape)


def write_model(model: ExportedModel, path: Path, metadata: Mapping[str, str], image_shape: tuple[int, ...]) -> float:
    """Write a model and compare the file with it on random images; a file that differs does not replace another.

    Args:
        model: The model.
        path: A file that ends in ``.onnx`` or ``.pt2``.
        metadata: What the file says of the model.
        image_shape: Channels, height and width.

    Returns:
        The largest difference of a probability.
    """
    chosen = format_of(path)
    noise = torch.Generator().manual_seed(0)
    batches = [
        torch.randint(256, (size, *image_shape), generator=noise, dtype=torch.uint8)
        for size in (EXAMPLE_SIZE, *CHECKED_SIZES)
    ]
    with evaluating(model), atomic_write(path) as partial:
        expected = [model(images).cpu() for images in batches]  # before the graph: see graph_of
        chosen.write(graph_of(model, batches[0]), partial, metadata)
        run = chosen.read(partial)
        differences = [(run(images) - found).abs().max() for images, found in zip(batches, expected, strict=True)]
        difference = float(torch.stack(differences).max())
        if not difference <= TOLERANCE:  # so that nan, which torch's max keeps, fails
            raise SavingError(
                f"{path} is not written: its probabilities would differ from the method's by {difference:.1e}, more "
                f"than {TOLERANCE:.0e}"
            )
    return difference


def format_of(path: Path) -> Format:
    """The format of a file by its name, if all packages for it are there."""
    chosen = FORMATS.get(path.suffix.lower())
    if chosen is None:
        raise ConfigurationError(f"output must be a file that ends in {' or '.join(FORMATS)}, got {path}")
    missing = [name for name in chosen.packages if find_spec(name) is None]
    if missing:
        raise ConfigurationError(
            f'{path.suffix} needs {", ".join(missing)}, not installed: pip install -e ".[export]", or write a .pt2'
        )
    return chosen


def _write_onnx(graph: ExportedProgram, path: Path, metadata: Mapping[str, str]) -> None:
    try:
        program = torch.onnx.export(
            graph, input_names=[INPUT], output_names=[OUTPUT], dynamic_shapes=SHAPES, verbose=False
        )
    except torch.onnx.errors.OnnxExporterError as error:
        raise ConfigurationError(f"torch.onnx cannot write this method, try a .pt2: {first_line(error)}") from error
    assert program is not None
    program.model.metadata_props.update(metadata)
    program.save(path, external_data=False)


def _read_onnx(path: Path) -> Callable[[Tensor], Tensor]:
    try:
        session = onnx_session(path)
    except Exception as error:  # its own types have no common base
        raise ConfigurationError(f"onnxruntime cannot run this method, try a .pt2: {first_line(error)}") from error
    return lambda images: torch.from_numpy(session.run([OUTPUT], {INPUT: images.numpy()})[0])


def onnx_session(path: Path) -> Any:
    """A session of onnxruntime without threads, for which a forked process that deletes it would wait forever."""
    import onnxruntime  # here: an extra

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _write_pt2(graph: ExportedProgram, path: Path, metadata: Mapping[str, str]) -> None:
    with path.open("wb") as file, warnings.catch_warnings():  # a file: torch warns of a path with another ending
        warnings.filterwarnings("ignore", "No complete tensor found")  # of weights in channels_last
        torch.export.save(graph, file, extra_files=dict(metadata))


def _read_pt2(path: Path) -> Callable[[Tensor], Tensor]:
    with path.open("rb") as file:
        loaded = torch.export.load(file).module()
    return lambda images: loaded(images).cpu()


FORMATS = {".onnx": Format(_write_onnx, _read_onnx, ONNX_PACKAGES), ".pt2": Format(_write_pt2, _read_pt2)}
