"""The compact detector as files: the weights that training starts from, the ONNX file, its model card."""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nipstool.detect_navtext.boxes import COMPACT
from nipstool.detect_navtext.maps import RULE, STRIDE
from nipstool.kit.errors import DataError

if TYPE_CHECKING:  # reading an ONNX file's metadata must not wait for torch
    from nipstool.detect_navtext.network import Detector

BASE = "compact.safetensors"
PROGRAM = "nipstool detect-navtext"
INPUT, OUTPUT = "x", "maps"
SAME = 1e-4  # how far outputs of different runtimes may lie apart
OPSET = 17
NAV_THRESHOLD = "nav_threshold"  # metadata: of what the two maps say, without a classifier
ALONE = "classifier_threshold"  # metadata: of the classifier without the second map, which its own is with


def start(base: bool = True) -> Detector:
    """A detector with the weights that come with the package, or with random ones."""
    from nipstool.detect_navtext.network import Detector

    if base:
        return with_weights(files("nipstool.detect_navtext").joinpath("data", BASE).read_bytes())
    return Detector().eval()


def with_weights(data: bytes) -> Detector:
    """A detector with weights as the package keeps them."""
    from safetensors.torch import load

    from nipstool.detect_navtext.network import Detector

    network = Detector()
    stored = load(data)
    whole = {name: value.float() if value.is_floating_point() else value for name, value in stored.items()}
    network.load_state_dict(whole)
    return network.eval()


def base_bytes(network: Detector) -> bytes:
    """The weights as the package keeps them: safetensors, float16."""
    from safetensors.torch import save

    state = {name: value.cpu().contiguous() for name, value in network.state_dict().items()}
    return save({name: value.half() if value.is_floating_point() else value for name, value in state.items()})


def onnx_bytes(
    network: Detector, *, about: Mapping[str, str] | None = None, classifier: bytes | None = None
) -> bytes:
    """The detector as ONNX: x (n, 3, h, w), blue, green, red in -1 to 1 -> maps (n, 2, h/2, w/2), 0 to 1.

    Args:
        about: further metadata.
        classifier: a relevance classifier (safetensors) that goes with it, in the metadata `classifier` as base64.
    """
    import onnx
    import torch

    from nipstool.detect_navtext.network import Probabilities

    buffer = io.BytesIO()
    example = torch.zeros(1, 3, 2 * STRIDE, 3 * STRIDE)
    axes = {INPUT: {0: "n", 2: "h", 3: "w"}, OUTPUT: {0: "n", 2: "h2", 3: "w2"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter deprecates itself; the new one writes no dynamic sizes
        torch.onnx.export(
            Probabilities(network).eval(),
            (example,),
            buffer,  # pyright: ignore[reportArgumentType]
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_axes=axes,
            opset_version=OPSET,
            dynamo=False,
        )
    model = onnx.load_from_string(buffer.getvalue())
    rule = f"{COMPACT.threshold:g} {COMPACT.box_threshold:g} {COMPACT.unclip:g}"
    data = {"nipstool": PROGRAM, RULE: rule, **(about or {})}
    if classifier is not None:
        data["classifier"] = base64.b64encode(classifier).decode()
    onnx.helper.set_model_props(model, data)
    return model.SerializeToString()


def check_export(data: bytes, network: Detector, *, seed: int = 0) -> float:
    """The largest difference between torch, onnxruntime and OpenCV on a random picture.

    Raises:
        DataError: it is above 1e-4.
    """
    import cv2
    import torch

    from nipstool.detect_navtext.models import silent_onnxruntime
    from nipstool.detect_navtext.network import Probabilities

    onnxruntime = silent_onnxruntime()
    random = np.random.default_rng(seed)
    x = random.uniform(-1, 1, (1, 3, 4 * STRIDE, 5 * STRIDE)).astype(np.float32)
    with torch.no_grad():
        wanted = Probabilities(network).eval()(torch.from_numpy(x)).numpy()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    by_ort = np.asarray(session.run(None, {INPUT: x})[0])
    net = cv2.dnn.readNetFromONNX(np.frombuffer(data, np.uint8))
    net.setInput(x)
    by_opencv = np.asarray(net.forward())
    apart = max(float(np.abs(by_ort - wanted).max()), float(np.abs(by_opencv - by_ort).max()))
    if not apart <= SAME:
        raise DataError(
            f"the exported detector differs by {apart:.2g} between runtimes; expected at most {SAME:g}"
        )
    return apart


def with_metadata(data: bytes, more: Mapping[str, str]) -> bytes:
    """An ONNX file's bytes with further metadata."""
    import onnx

    model = onnx.load_from_string(data)
    known = {entry.key: entry.value for entry in model.metadata_props}
    onnx.helper.set_model_props(model, {**known, **more})
    return model.SerializeToString()


def metadata(path: Path) -> dict[str, str]:
    """The metadata of an ONNX file.

    Raises:
        DataError: it is no ONNX file.
    """
    import onnx

    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # whatever protobuf and onnx may raise
        raise DataError(f"{path}: is no ONNX file: {str(error)[:120]}") from error
    return {entry.key: entry.value for entry in model.metadata_props}


def classifier_in(path: Path) -> bytes | None:
    """The relevance classifier that an ONNX file of `train` carries, as safetensors; None without one.

    Raises:
        DataError: it is no ONNX file.
    """
    found = metadata(path).get("classifier")
    return base64.b64decode(found) if found else None


def model_card(about: Mapping[str, Any], results: Mapping[str, Any]) -> str:
    """A model card in Markdown: what it was trained on, what it reached, what it is no good for."""
    trained = "".join(f"- {name}: {value}\n" for name, value in about.items())
    reached = "".join(f"| {name} | {_figure(value)} |\n" for name, value in results.items())
    return (
        "# A compact detector of navigation text\n\n"
        "Two maps at half of the picture's size: where text is, and where it tells people where they are. "
        "Use: `nipstool detect-navtext PICTURES --detector MODEL.onnx`.\n\n"
        f"## Training\n\n{trained}\n"
        f"## On the held-out places of the dataset\n\n| | |\n|---|---|\n{reached}\n"
        "## Limits\n\n"
        "- It knows the places it was trained on, and places like them. Elsewhere, evaluate it first.\n"
        "- It finds text; it does not read it. Text lower than about 8 pixels at a short side of 736 is lost.\n"
        "- It must not be the only thing that leads anybody to an emergency exit.\n"
    )


def _figure(value: Any) -> str:
    return "-" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


def as_input(image: NDArray[np.uint8]) -> NDArray[np.float32]:
    """A picture (h, w, 3) with sides in multiples of 32 as the ONNX takes it: (1, 3, h, w)."""
    from nipstool.detect_navtext.targets import shown

    return shown(image)[None]
