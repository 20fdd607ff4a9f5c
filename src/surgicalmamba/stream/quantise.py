"""int8 forms of exported graphs. Weights become bytes; what a graph takes and gives stays float32."""

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, get_args

StepWay = Literal["weight-only", "dynamic"]
"""How the step's products are done in int8. weight-only: weights in blocks of 32 with a scale each. dynamic: one scale per column,
and one per call for the activations. Both multiply bytes."""
STEP_WAYS: tuple[StepWay, ...] = get_args(StepWay)
BLOCK = 32


def quantise_weights(source: Path, target: Path) -> None:
    """MatMulNBits: 8 bits per weight in blocks; products are done on bytes too (accuracy level 4)."""
    import onnx
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    with quiet(), _beside(target) as part:
        quantizer = MatMulNBitsQuantizer(onnx.load(str(source)), bits=8, block_size=BLOCK, is_symmetric=True, accuracy_level=4)
        quantizer.process()
        quantizer.model.save_model_to_file(str(part), use_external_data_format=True)


def quantise_dynamic(source: Path, target: Path) -> None:
    """MatMulInteger with weights of 7 bits: older CPUs without VNNI saturate when they add two products of 8 bits."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with quiet(), _beside(target) as part:
        quantize_dynamic(
            str(source),
            str(part),
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
            use_external_data_format=True,
        )


def quantise_step(source: Path, target: Path, way: StepWay) -> None:
    (quantise_weights if way == "weight-only" else quantise_dynamic)(source, target)


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """A place to write a graph and its data file under their final names; both are moved when done, the graph last."""
    with TemporaryDirectory(dir=target.parent, prefix=".int8-") as folder:
        part = Path(folder) / target.name
        yield part
        for file in (part.with_name(part.name + ".data"), part):
            if file.exists():
                os.replace(file, target.with_name(file.name))


@contextmanager
def quiet() -> Iterator[None]:
    """Exporter and quantiser log their progress and their deprecations; a user of this package can act on none of it."""
    root, silent = logging.getLogger(), logging.NullHandler()
    disabled = logging.root.manager.disable
    root.addHandler(silent)  # or the first root-level warning would install a handler for good
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
        root.removeHandler(silent)
