"""Tokens/s of cached infilling, plain, adapted, and with the adaptation folded into a second copy of the weights, against the
base model's own ``generate``.

python benchmarks/infill_decoding.py [--rounds 5] [--dtype float32] [--tokens 48]
"""

from __future__ import annotations

import argparse

import torch
from support import interleaved, machine, table, timed

from ambilm import AmbiLM
from ambilm.adaptation import AdapterSettings, add_adapter

TEXT = "In the morning she had breakfast with her brother. [BLANK] Then both of them went to the harbour."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--dtype", default="auto")
    options = parser.parse_args()
    print(machine())
    model = AmbiLM.from_pretrained("smollm2-135m", dtype=options.dtype)
    print(model.notice)
    adapted = AmbiLM(model.base, model.tokenizer, "adapted", model.settings)
    add_adapter(adapted.view, AdapterSettings())
    merged = adapted.merged()
    ids = model.tokenizer(TEXT.replace("[BLANK] ", ""), return_tensors="pt")["input_ids"]
    count = options.tokens

    def generate() -> None:
        with torch.inference_mode():
            model.base.generate(ids, max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0)

    rates = interleaved(
        {
            "base generate": lambda: count / timed(generate),
            "infill, base weights": lambda: (
                count / timed(lambda: model.infill(TEXT, min_tokens=count, max_tokens=count))
            ),
            "infill, adapted": lambda: count / timed(lambda: adapted.infill(TEXT, min_tokens=count, max_tokens=count)),
            "infill, adapted, merged copy": lambda: (
                count / timed(lambda: merged.infill(TEXT, min_tokens=count, max_tokens=count))
            ),
        },
        options.rounds,
    )
    print(table(rates, "tokens/s", "base generate"))


if __name__ == "__main__":
    main()
