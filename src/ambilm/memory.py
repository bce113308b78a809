"""Keep freed memory in the process, so that each step does not ask the kernel for the same gigabytes again.

glibc hands every large tensor back to the kernel when it is freed and takes fresh, zeroed pages for the next one. A training
step of SmolLM2-135M faults a million pages that way, which took nearly half of its time (docs/log.md, "Where a step goes").
"""

from __future__ import annotations

import ctypes
import sys

# Parameters of mallopt(3), from malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
_KEPT = 2**31 - 1  # bytes at the top of the heap that are kept when freed: the largest int
_GROWTH = 2**26  # bytes that the heap grows by at least


def keep_freed_memory() -> bool:
    """Tells glibc's allocator to reuse large blocks; elsewhere nothing happens. Returns whether it was told."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # musl has none
        return False
    return all(mallopt(key, value) for key, value in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, _KEPT), (_TOP_PAD, _GROWTH)))
