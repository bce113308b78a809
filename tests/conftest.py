"""What every test shares: an offline hub, a thread count, the real SmolLM2-135M and the shared data folder."""

import os

# Before torch and transformers are imported: no test may reach for the network, and tokenizers must not warn of forks.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from ambilm import AmbiLM

# More threads than cores make the tiny models of the battery slower, not faster.
if "OMP_NUM_THREADS" not in os.environ:
    torch.set_num_threads(min(os.cpu_count() or 1, 4))

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def smollm2() -> "AmbiLM":
    """The real SmolLM2-135M, unadapted, in float32. Shared by the session: a test that trains must load its own."""
    from ambilm import AmbiLM

    return AmbiLM.from_pretrained("smollm2-135m", dtype="float32")


@pytest.fixture(scope="session")
def smollm2_bf16() -> "AmbiLM":
    """The real SmolLM2-135M, unadapted, in bfloat16. Shared by the session."""
    from ambilm import AmbiLM

    return AmbiLM.from_pretrained("smollm2-135m", dtype="bfloat16")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of data sets that lies beside the repository (``../shared/data``)."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        reason = "../shared/data is not beside the repository"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return folder
