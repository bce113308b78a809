"""Adapt a model to one's own text and see, without any labels, whether it helped.

python examples/own_text.py smollm2-135m notes.txt held_out.txt my-run
"""

import sys
from pathlib import Path

from ambilm import AmbiLM
from ambilm.evaluation import compare, evaluate
from ambilm.recipes import Magnet
from ambilm.training import adapt


def adapt_and_measure(name: str, text: Path, held_out: Path, output: Path, recipe: Magnet, limit: int = 100) -> Path:
    """Trains on ``text``, measures base and adapted model on ``held_out``, returns the table that compares them."""
    directory = adapt(recipe, model=name, text=[str(text)], output=output / "model")
    results = [output / "base.json", output / "adapted.json"]
    for model, result in zip((name, directory), results, strict=True):
        evaluate(AmbiLM.from_pretrained(model), "own_text", [held_out], result, limit=limit)
    compare(results, output / "table.md")
    return output / "table.md"


if __name__ == "__main__":
    name, text, held_out, output = sys.argv[1:]
    table = adapt_and_measure(name, Path(text), Path(held_out), Path(output), Magnet(stage1_steps=40, stage2_steps=40))
    print(table.read_text(encoding="utf-8"))
