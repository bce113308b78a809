"""Peak memory of ``encode`` over a generator: it must not grow with the number of texts beyond the result itself.

python benchmarks/encode_memory.py [--few 10000] [--many 100000]
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from support import machine

# Each size in a process of its own, since a peak never falls.
SCRIPT = """
import resource, sys
from ambilm import AmbiLM
model = AmbiLM.from_pretrained("smollm2-135m")
words = "rain sun wind snow fog".split()
texts = (words[number % 5] for number in range(int(sys.argv[1])))
vectors = model.encode(texts, layout="causal", pooling="mean", prompt="", show_progress_bar=False)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, vectors.nbytes / 2**20)
"""


def peak(count: int) -> tuple[float, float]:
    """MiB at the peak, and MiB of the result."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(count)], capture_output=True, text=True, check=True)
    total, result = done.stdout.split()[-2:]
    return float(total), float(result)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--few", type=int, default=10_000)
    parser.add_argument("--many", type=int, default=100_000)
    options = parser.parse_args()
    print(machine())
    for count in (options.few, options.many):
        total, result = peak(count)
        print(
            f"{count:,} texts: peak {total:,.0f} MiB, result {result:,.0f} MiB, peak without it {total - result:,.0f} MiB"
        )


if __name__ == "__main__":
    main()
