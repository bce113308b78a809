"""Sentences/s of ``encode`` against sentence-transformers: on the same weights, attention and dtype, and in float32; and
the share of the GEMM rate.

python benchmarks/encode.py [--sentences 4000] [--rounds 4] [--dtype float32]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from support import gemm_rate, interleaved, machine, table, timed

from ambilm import AmbiLM
from ambilm.demo.text import Limits, demo_text
from ambilm.training.text import sentences_of


def sentences(count: int) -> list[str]:
    """Sentences of the demo's held-out paragraphs (shared data, or Python's own documentation), repeated up to ``count``."""
    with tempfile.TemporaryDirectory() as directory:
        passages = demo_text(Path(directory), Limits(passages=1000), 0).held_out.passages
    found = [sentence for passage in passages for sentence in sentences_of(passage)]
    return [found[number % len(found)] for number in range(count)]


def peer(model: AmbiLM, directory: str, **loading: Any) -> SentenceTransformer:
    """sentence-transformers over the same weights: mean pooling, no chat template (it would wrap every text in it)."""
    model.save_pretrained(directory)
    (Path(directory) / "chat_template.jinja").unlink(missing_ok=True)
    body = Transformer(directory, model_kwargs=loading)
    return SentenceTransformer(
        modules=[body, Pooling(model.base.config.hidden_size, pooling_mode="mean")], device="cpu"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentences", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--dtype", default="auto")
    options = parser.parse_args()
    print(machine())
    model = AmbiLM.from_pretrained("smollm2-135m", dtype=options.dtype)
    print(model.notice)
    texts = sentences(options.sentences)
    tokens = sum(len(ids) for ids in model.tokenizer(texts)["input_ids"])
    with tempfile.TemporaryDirectory() as directory:
        same = peer(model, f"{directory}/same", dtype=model.base.dtype, attn_implementation="sdpa")
        wide = peer(model, f"{directory}/float32", dtype=torch.float32)
        vectors: dict[str, np.ndarray] = {}

        def own() -> None:
            vectors["own"] = model.encode(texts, layout="causal", pooling="mean", prompt="", show_progress_bar=False)

        def theirs() -> None:
            vectors["theirs"] = same.encode(texts)

        rates = interleaved(
            {
                "sentence-transformers": lambda: len(texts) / timed(theirs),
                "sentence-transformers, float32": lambda: len(texts) / timed(lambda: wide.encode(texts)),
                "ambilm": lambda: len(texts) / timed(own),
                "GEMM, GFLOP/s": gemm_rate(model.base.dtype),
            },
            options.rounds,
        )
    gemm = statistics.median(rates.pop("GEMM, GFLOP/s"))
    print(table(rates, "sentences/s", "sentence-transformers"))
    cosine = (vectors["own"] * vectors["theirs"]).sum(1) / np.linalg.norm(vectors["own"], axis=1)
    print(f"smallest cosine between the two: {(cosine / np.linalg.norm(vectors['theirs'], axis=1)).min():.6f}")
    weights = sum(p.numel() for p in model.base.parameters()) - model.base.get_input_embeddings().weight.numel()
    used = 2 * weights * tokens / len(texts) * statistics.median(rates["ambilm"]) / 1e9
    print(
        f"{used:.0f} of {gemm:.0f} GFLOP/s measured in between: {used / gemm:.0%} ({torch.get_num_threads()} threads)"
    )


if __name__ == "__main__":
    main()
