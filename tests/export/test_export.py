"""Round trips against the real libraries: what they load gives AmbiLM's own logits and vectors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModelForCausalLM, AutoTokenizer

from ambilm import AmbiLM
from ambilm.errors import UserError
from ambilm.export import export_hf, export_merged, export_sentence_transformers
from ambilm.model.settings import MAGNET_PROMPT, PROMPT_EOL, REPRESENTATIVE_WORD
from ambilm.recipes import Bidirectional
from ambilm.training import adapt

TEXTS = ["A man is eating.", "It's raining – again!", "x", "Two dogs,  one bone\nand no end", "Ünïcode 👍."]


@pytest.fixture(scope="module")
def adapted(smollm2: AmbiLM, tmp_path_factory: pytest.TempPathFactory) -> AmbiLM:
    """The real model in float32, tuned for two steps, so that merging has something to fold in."""
    folder = tmp_path_factory.mktemp("adapted")
    pairs = folder / "pairs.jsonl"
    pairs.write_text("\n".join(f'{{"anchor": "A man {i}.", "positive": "Person {i}."}}' for i in range(8)))
    recipe = Bidirectional(steps=2, pairs_per_step=4, learning_rate=5e-3, warmup=0.0, sink=False)
    run = adapt(recipe, "smollm2-135m", [], folder / "run", pairs=[str(pairs)], dtype="float32")
    return AmbiLM.from_pretrained(run, dtype="float32")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"prompt": ""},
        {"prompt": "query", "pooling": "weighted_mean"},
        {"pooling": "last", "append_end": True, "prompt": MAGNET_PROMPT},
        {"pooling": "last", "layout": "causal", "prompt": PROMPT_EOL},
    ],
)
def test_sentence_transformers_gives_our_vectors(adapted: AmbiLM, tmp_path: Path, changes: dict[str, Any]) -> None:
    assert adapted.settings.prompt == REPRESENTATIVE_WORD
    model = adapted.merged()
    model.adapter, model.settings = None, adapted.settings.model_copy(update=changes)
    export_sentence_transformers(model, tmp_path / "encoder")
    peer = SentenceTransformer(str(tmp_path / "encoder"), device="cpu", model_kwargs={"dtype": torch.float32})
    np.testing.assert_allclose(peer.encode(TEXTS), model.encode(TEXTS), rtol=1e-3, atol=2e-3)


def test_the_adaptation_is_folded_in(adapted: AmbiLM, tmp_path: Path) -> None:
    export_sentence_transformers(adapted, tmp_path / "encoder")
    peer = SentenceTransformer(str(tmp_path / "encoder"), device="cpu", model_kwargs={"dtype": torch.float32})
    ours, base = adapted.encode(TEXTS), adapted.encode(TEXTS, weights="base")
    cosine = np.sum(peer.encode(TEXTS) * ours, 1) / np.linalg.norm(peer.encode(TEXTS), axis=1)
    assert np.all(cosine / np.linalg.norm(ours, axis=1) > 0.9999) and not np.allclose(ours, base, atol=1e-2)


def test_hf_is_the_base_and_merged_is_the_adapted_model(adapted: AmbiLM, tmp_path: Path) -> None:
    ids = adapted.tokenizer("Once upon a time", return_tensors="pt")["input_ids"]
    export_hf(adapted, tmp_path / "hf")
    export_merged(adapted, tmp_path / "merged")
    with torch.no_grad():
        logits = [
            AutoModelForCausalLM.from_pretrained(tmp_path / name, dtype=torch.float32)(ids).logits
            for name in ("hf", "merged")
        ]
        base, merged = adapted.base(ids).logits, adapted.merged().base(ids).logits
    assert torch.equal(logits[0], base) and torch.equal(logits[1], merged) and not torch.equal(base, merged)
    assert AutoTokenizer.from_pretrained(tmp_path / "hf")("a")["input_ids"] == adapted.tokenizer("a")["input_ids"]
    assert not (tmp_path / "hf" / "ambilm.json").exists()


def test_what_cannot_be_exported_says_why(smollm2: AmbiLM, adapted: AmbiLM, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing to merge"):
        export_merged(smollm2, tmp_path / "new")
    sink = AmbiLM(adapted.base, adapted.tokenizer, "sink", adapted.settings.model_copy(update={"sink": True}))
    with pytest.raises(UserError, match="sink=false"):
        export_sentence_transformers(sink, tmp_path / "new")
    echo = AmbiLM(adapted.base, adapted.tokenizer, "echo", adapted.settings.read_as("echo"))
    with pytest.raises(UserError, match="cannot repeat a text"):
        export_sentence_transformers(echo, tmp_path / "new")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious.txt").write_text("mine")
    with pytest.raises(UserError, match="not empty"):
        export_hf(smollm2, tmp_path / "full")
    assert [item.name for item in tmp_path.iterdir()] == ["full"] and len(list((tmp_path / "full").iterdir())) == 1
