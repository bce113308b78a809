"""Search by meaning: the lines of a file that are closest to a query.

python examples/embeddings.py demo/model sentences.txt "a pet that runs"
"""

import sys
from pathlib import Path

from ambilm import AmbiLM


def search(model: AmbiLM, lines: list[str], query: str, count: int = 3) -> list[tuple[float, str]]:
    """The closest lines with their cosines, best first."""
    vectors = model.encode(lines, normalize_embeddings=True)  # (lines, d)
    wanted = model.encode(query, normalize_embeddings=True)  # (d,)
    scores = vectors @ wanted  # (lines,)
    return [(float(scores[place]), lines[place]) for place in scores.argsort()[::-1][:count]]


if __name__ == "__main__":
    name, file, query = sys.argv[1:]
    lines = [line for line in Path(file).read_text(encoding="utf-8").splitlines() if line.strip()]
    for score, line in search(AmbiLM.from_pretrained(name), lines, query):
        print(f"{score:.3f}  {line}")
