"""The demo room: ``ambilm demo`` adapts SmolLM2-135M, measures it before and after, and writes one page about it.

``text`` says what is read, ``measure`` what is measured, ``figures`` and ``report`` how it is shown, ``run`` in which order.
"""

from ambilm.demo.run import run_demo

__all__ = ["run_demo"]
