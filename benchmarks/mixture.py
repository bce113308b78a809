"""What UBMoE's two experts cost a causal model: prefill of 8 x 128 tokens and cached decoding, base weights against learned gates.

python benchmarks/mixture.py [--rounds 5] [--dtype float32] [--tokens 32] [--rank 8]

The gates are random, so that about half of the tokens of each layer go to either expert: the dearest case.
"""

from __future__ import annotations

import argparse

import torch
from support import interleaved, machine, table, timed
from torch import Tensor
from transformers import PreTrainedModel

from ambilm import AmbiLM
from ambilm.adaptation import (
    MixtureSettings,
    add_mixture,
    expert_parameters,
    gate_parameters,
    shared_view,
    with_mixture,
)
from ambilm.evaluation.overhead import SHAPE, parameter_count, prefill, prefill_flops

PROMPT = 16  # tokens before decoding begins
SIZE = 0.02  # of the differences: nothing in the timing depends on their values


def two_experts(base: PreTrainedModel, settings: MixtureSettings) -> PreTrainedModel:
    """The stock causal model with a mixture in each layer, under its gates."""
    torch.manual_seed(0)
    view = shared_view(base)
    add_mixture(view, settings)
    with torch.no_grad():
        for parameter in expert_parameters(view).values():
            parameter.add_(torch.randn_like(parameter) * SIZE)
        for gate in gate_parameters(view).values():
            gate.requires_grad_(False)
    return with_mixture(base, view, "learned")


@torch.inference_mode()
def decode(model: PreTrainedModel, ids: Tensor, count: int) -> None:
    model.generate(ids, max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--dtype", default="auto")
    options = parser.parse_args()
    print(machine())
    loaded = AmbiLM.from_pretrained("smollm2-135m", dtype=options.dtype)
    print(loaded.notice)
    base = loaded.base
    models = {
        "base": base,
        "low-rank expert": two_experts(base, MixtureSettings(rank=options.rank)),
        "dense expert": two_experts(base, MixtureSettings(expert="dense")),
    }
    ids = torch.randint(100, len(loaded.tokenizer), SHAPE)  # (8, 128)
    for name, model in models.items():
        share = parameter_count(model) / parameter_count(base)
        work = prefill_flops(model, ids) / prefill_flops(base, ids)
        print(f"{name}: {share:.4f}x parameters, {work:.4f}x FLOPs of the prefill")
    count = options.tokens
    for title, tokens, run in (
        ("prefill 8 x 128", ids.numel(), lambda model: prefill(model, ids)),
        ("decoding, batch 1", count, lambda model: decode(model, ids[:1, :PROMPT], count)),
        ("decoding, batch 8", 8 * count, lambda model: decode(model, ids[:, :PROMPT], count)),
    ):
        contestants = {
            name: lambda run=run, model=model, tokens=tokens: tokens / timed(lambda: run(model))
            for name, model in models.items()
        }
        print(f"\n{title}\n{table(interleaved(contestants, options.rounds), 'tokens/s', 'base')}")


if __name__ == "__main__":
    main()
