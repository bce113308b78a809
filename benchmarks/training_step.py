"""Where a training step goes: tokens/s of forward and backward, and the operations that take the most time.

python benchmarks/training_step.py [--texts 24] [--tokens 50] [--dtype float32]
"""

from __future__ import annotations

import argparse
import statistics

import numpy as np
from support import gemm_rate, machine, timed
from torch.profiler import ProfilerActivity, profile

from ambilm import AmbiLM
from ambilm.adaptation import AdapterSettings, add_adapter
from ambilm.objectives import infill_view
from ambilm.training.losses import LossSettings, StepViews, packed_losses

REPEATS = 4
SHOWN = 12  # operations


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=50, help="of each text; a quarter of them is a missing span")
    parser.add_argument("--dtype", default="auto")
    options = parser.parse_args()
    print(machine())
    model = AmbiLM.from_pretrained("smollm2-135m", dtype=options.dtype)
    print(model.notice)
    add_adapter(model.view, AdapterSettings())
    random, span = np.random.default_rng(0), options.tokens // 4
    texts = random.integers(100, len(model.tokenizer), (options.texts, options.tokens))
    views = StepViews([infill_view(ids, [(span, 2 * span)], [span], 2) for ids in texts])

    def step() -> None:
        model.view.zero_grad()
        packed_losses(model.view, views, LossSettings()).total.backward()  # type: ignore[no-untyped-call]

    step()
    seconds = statistics.median(timed(step) for _ in range(REPEATS))
    tokens = options.texts * options.tokens
    # Forward, and backward to the inputs; the weights are frozen.
    body = sum(p.numel() for p in model.base.parameters()) - model.base.get_input_embeddings().weight.numel()
    used, rate = 4 * body * tokens / seconds / 1e9, gemm_rate(model.base.dtype)()
    print(f"{seconds:.2f} s, {tokens / seconds:,.0f} tokens/s, {used:.0f} of {rate:.0f} GFLOP/s: {used / rate:.0%}")
    with profile(activities=[ProfilerActivity.CPU]) as found:
        step()
    events = sorted(found.key_averages(), key=lambda event: -event.self_cpu_time_total)
    total = sum(event.self_cpu_time_total for event in events)
    print("| operation | share | calls |\n| --- | ---: | ---: |")
    for event in events[:SHOWN]:
        print(f"| `{event.key}` | {event.self_cpu_time_total / total:.1%} | {event.count:,} |")


if __name__ == "__main__":
    main()
