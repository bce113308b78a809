"""Bidirectional tuning of a module group: every source of pairs and every group trains, saves, loads and leaves generation."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.families import FAMILIES, tiny
from tests.training.conftest import first_tokens

from ambilm import AmbiLM
from ambilm.adaptation.adapters import module_names
from ambilm.errors import UserError
from ambilm.model import encoding
from ambilm.model.encoding import PromptedTokenizer
from ambilm.model.settings import MAGNET_PROMPT, REPRESENTATIVE_WORD, Pooling
from ambilm.recipes import Bidirectional
from ambilm.training import adapt
from ambilm.training.draws import Texts
from ambilm.training.methods import bidirectional
from ambilm.training.sources import Sources, pair_store, prompted
from ambilm.training.step_views import PairViews
from ambilm.training.tokens import PairStore, TokenStore


def recipe(**changes: Any) -> Bidirectional:
    return Bidirectional(**{"steps": 2, "pairs_per_step": 4, "checkpoint_every": 1, **changes})


@pytest.mark.parametrize("modules", ["ffn", "ffn_gate", "att+emb", "all"])
@pytest.mark.parametrize("tuning", ["lora", "full"])
def test_pairs_with_and_without_negatives(
    tiny_model: Path, pair_file: str, tmp_path: Path, modules: str, tuning: str
) -> None:
    before = AmbiLM.from_pretrained(tiny_model, dtype="float32")
    chosen = recipe(modules=modules, tuning=tuning)
    output = adapt(chosen, str(tiny_model), [], tmp_path / "run", pairs=[pair_file], dtype="float32")
    model = AmbiLM.from_pretrained(output, dtype="float32")
    settings = model.settings
    assert (settings.recipe, settings.layout, settings.pooling) == ("bidirectional", "bidirectional", "mean")
    assert settings.prompt == REPRESENTATIVE_WORD and not settings.append_end
    ids = torch.arange(5, 25)[None]
    assert torch.equal(model.base(ids).logits, before.base(ids).logits)
    texts = ["A man eats.", "It rains."]
    old = before.encode(texts, layout="bidirectional", pooling="mean", prompt=REPRESENTATIVE_WORD)
    assert not np.allclose(model.encode(texts), old)


@pytest.mark.parametrize("changes", [{}, {"drawn_negatives": True}, {"dropout": 0.0}])
def test_dropout_views_need_text_alone(
    tiny_model: Path, text_file: str, tmp_path: Path, changes: dict[str, Any]
) -> None:
    output = adapt(recipe(**changes), str(tiny_model), [text_file], tmp_path / "run")
    assert np.isfinite(AmbiLM.from_pretrained(output).encode(["a"])).all()


def test_without_pairs_or_text_it_says_what_is_missing(tiny_model: Path, pair_file: str, tmp_path: Path) -> None:
    for pairs in ([], [pair_file]):
        with pytest.raises(UserError, match="give --text FILE"):
            adapt(recipe(views="both"), str(tiny_model), [], tmp_path / "run", pairs=pairs)
    assert not (tmp_path / "run").exists()


def test_a_drawn_negative_is_never_the_anchor_or_the_positive(smollm2: AmbiLM, tmp_path: Path) -> None:
    rows = [("one", "uno", None), ("two", "uno", None), ("three", "tres", "four")]
    tokenizer = smollm2.tokenizer
    store = PairStore.build(rows, first_tokens(tokenizer, 8), len(tokenizer), tmp_path / "pairs", fingerprint="")
    prompted = PromptedTokenizer(tokenizer, "", 8, start=0, sink=True, end=None)
    views = PairViews(recipe(pairs_per_step=3), 0, prompted, None, store, drawn_negatives=True)
    for step in range(20):
        drawn = views(step)
        assert len(drawn.negatives) == 3
        for anchor, positive, negative in zip(drawn.anchors, drawn.positives, drawn.negatives, strict=True):
            assert negative.ids.tolist() not in (anchor.ids.tolist(), positive.ids.tolist())


@pytest.mark.parametrize("family", FAMILIES)
def test_module_groups_of_every_family(family: str) -> None:
    model = tiny(family)
    ffn, without_gate, everything = (set(module_names(model, name)) for name in ("ffn", "ffn_gate", "all"))
    assert without_gate <= ffn < everything and without_gate
    gates = {name for name in ffn if name.endswith("gate_proj")}
    assert ffn - without_gate == gates
    assert everything == ffn | set(module_names(model, "att")) | set(module_names(model, "emb"))


@pytest.mark.parametrize("sink", [True, False])
@pytest.mark.parametrize(("pooling", "prompt"), [("last", MAGNET_PROMPT), ("mean", REPRESENTATIVE_WORD)])
def test_training_reads_the_tokens_that_encode_reads(
    smollm2: AmbiLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sink: bool, pooling: Pooling, prompt: str
) -> None:
    """From pairs and from dropout views alike, a text too long for its prompt included."""
    texts = ["A man eats.", "rain and wind " * 40]
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("\n".join(json.dumps({"anchor": text, "positive": "Yes."}) for text in texts))
    chosen = recipe(pairs_per_step=2, pair_tokens_max=40, pooling=pooling, prompt=prompt, sink=sink)
    model = AmbiLM(smollm2.base, smollm2.tokenizer, "copy")
    sources = Sources([], [str(pairs)], tmp_path, run_before=lambda earlier: tmp_path)
    bidirectional(chosen, model, sources)  # leaves its settings in the model
    seen: list[list[int]] = []

    def note(view: Any, sequences: list[list[int]], *_: Any) -> torch.Tensor:
        seen.extend(sequences)
        return torch.zeros(1, sum(map(len, sequences)), 4)

    monkeypatch.setattr(encoding, "packed_hidden", note)
    model.encode(texts, max_length=40)
    expected = sorted(seen)
    store = pair_store(sources, model, chosen)
    from_file = PairViews(chosen, 0, prompted(model, chosen), None, store)(0)
    assert sorted(view.ids.tolist() for view in from_file.anchors) == expected
    tokens = TokenStore.build(texts, model.tokenizer, tmp_path / "text", max_length=500, fingerprint="")
    dropped = PairViews(chosen, 0, prompted(model, chosen), Texts([tokens], 0, needed=1), None)(0)
    assert sorted(view.ids.tolist() for view in dropped.anchors) == expected
