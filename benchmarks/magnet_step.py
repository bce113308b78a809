"""The packed MAGNET step against the three padded passes on the same views: tokens/s of forward and backward.

python benchmarks/magnet_step.py [--rounds 5] [--dtype float32]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from support import interleaved, machine, table, timed

from ambilm import AmbiLM
from ambilm.adaptation import AdapterSettings, add_adapter
from ambilm.objectives import infill_view, plain_view
from ambilm.objectives.views import Masking
from ambilm.training.losses import LossSettings, StepViews, packed_losses, three_pass_losses


def views(vocabulary: int, seed: int) -> StepViews:
    """Texts as long as stories and paragraphs are (30 to 128 tokens), sentences of 8 to 40; the ids do not matter here."""
    random = np.random.default_rng(seed)
    masking = Masking(0.2, 5, vocabulary)

    def text(low: int, high: int) -> np.ndarray:
        return random.integers(100, vocabulary, int(random.integers(low, high)))

    hybrid = [infill_view(text(30, 128), [(8, 20)], [24], 2, masking, random) for _ in range(12)]
    return StepViews(hybrid, *([plain_view(text(8, 40)) for _ in range(24)] for _ in range(2)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", default="auto")
    options = parser.parse_args()
    print(machine())
    model = AmbiLM.from_pretrained("smollm2-135m", dtype=options.dtype)
    print(model.notice)
    add_adapter(model.view, AdapterSettings())
    batch = views(len(model.tokenizer), seed=0)

    def rate(compute: Callable[..., object]) -> Callable[[], float]:
        def run() -> float:
            model.view.zero_grad()
            return tokens / timed(lambda: compute(model.view, batch, LossSettings(pooling="mean")).total.backward())  # type: ignore[attr-defined]

        return run

    tokens = sum(len(view) for view in batch.hybrid + batch.clean)
    rates = interleaved({"three padded passes": rate(three_pass_losses), "packed": rate(packed_losses)}, options.rounds)
    print(f"{tokens} tokens a step")
    print(table(rates, "tokens/s", "three padded passes"))


if __name__ == "__main__":
    main()
