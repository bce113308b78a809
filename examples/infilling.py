"""Fill in blanks in several ways, and score a filling of one's own.

python examples/infilling.py demo/model "She missed the bus, so [BLANK] She was late for work." "she walked."
"""

import sys

from ambilm import AmbiLM


def propose(model: AmbiLM, text: str, count: int = 3) -> list[tuple[float, str]]:
    """Sampled fillings with their log-probabilities, best first."""
    filled = model.infill(text, num_candidates=count, do_sample=True, top_p=0.9, temperature=0.8, seed=0)
    return [(candidate.score, " / ".join(candidate.spans)) for candidate in filled.candidates]


def rate(model: AmbiLM, text: str, own: str) -> float:
    """Log-probability (nats) of one's own filling, given both sides."""
    return model.score(text, spans=[own]).total


if __name__ == "__main__":
    name, text, own = sys.argv[1:]
    model = AmbiLM.from_pretrained(name)
    for score, filling in propose(model, text):
        print(f"{score:8.1f}  {filling}")
    print(f"{rate(model, text, own):8.1f}  {own} (yours)")
