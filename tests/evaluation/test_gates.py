"""Gate statistics: tokens are classed by what they are, and shares are what the gates themselves decide."""

import numpy as np
import pytest
import torch

from ambilm import AmbiLM
from ambilm.adaptation import MixtureSettings, add_mixture, gate_parameters, set_route
from ambilm.errors import UserError
from ambilm.evaluation.gates import classified, form_of, gate_shares
from ambilm.evaluation.gates_report import figure, markdown

CHAT = [
    {"role": "user", "content": "Name 2 rivers."},
    {"role": "assistant", "content": "The Mississippi, and 1 more."},
]


@pytest.fixture(scope="module")
def gated(smollm2: AmbiLM) -> AmbiLM:
    model = AmbiLM(smollm2.base, smollm2.tokenizer, "gated")
    model.mixture = MixtureSettings()
    torch.manual_seed(0)
    add_mixture(model.view, model.mixture)
    set_route(model.view, "all_tuned")
    return model


def test_form_is_told_by_the_characters() -> None:
    text = "Running, 3x 12\n"
    spans = [
        (0, 3, "beginning of a word"),
        (3, 7, "inside a word"),
        (7, 8, "punctuation"),
        (9, 11, "beginning of a word"),
    ]
    spans += [(11, 14, "number"), (12, 14, "number"), (14, 15, "white space"), (8, 11, "beginning of a word")]
    for start, stop, form in spans:
        assert form_of(text, start, stop) == form, text[start:stop]


def test_tokens_of_a_conversation_know_their_part(smollm2: AmbiLM) -> None:
    ids, classes = classified(CHAT, smollm2.tokenizer)
    assert smollm2.tokenizer.decode(ids) == smollm2.tokenizer.apply_chat_template(CHAT, tokenize=False).rstrip()
    answer = smollm2.tokenizer.decode(
        [token for token, (part, _) in zip(ids, classes, strict=True) if part == "answer"]
    )
    assert answer == "The Mississippi, and 1 more.<|im_end|>"
    forms = {smollm2.tokenizer.decode([token]).strip(): form for token, (_, form) in zip(ids, classes, strict=True)}
    assert forms["The"] == forms["and"] == "beginning of a word" and forms["2"] == forms["1"] == "number"
    assert forms["<|im_end|>"] == "special token" and forms["."] == forms[","] == "punctuation"
    assert "inside a word" in forms.values() and forms[""] == "white space"
    assert classified("A text.", smollm2.tokenizer)[1][0] == ("text", "beginning of a word")


def test_shares_follow_the_gates(gated: AmbiLM) -> None:
    gates = list(gate_parameters(gated.view).values())
    saved = [gate.detach().clone() for gate in gates]
    embedding = gated.base.get_input_embeddings().weight
    try:
        found = gate_shares(gated, [CHAT, "A plain text of its own."])
        classes = found["classes"]
        assert found["documents"] == 2 and {"all tokens", "prompt", "answer", "text"} <= set(classes)
        assert sum(classes[part]["n"] for part in ("prompt", "answer", "text")) == classes["all tokens"]["n"]
        assert 0 < classes["all tokens"]["share"] < 100
        with torch.no_grad():
            for gate in gates:
                gate.zero_()
        assert gate_shares(gated, [CHAT])["classes"]["all tokens"]["share"] == 0  # a tie goes to expert 0
    finally:
        with torch.no_grad():
            for gate, values in zip(gates, saved, strict=True):
                gate.copy_(values)
    assert gated.base.get_input_embeddings().weight is embedding
    weighted = sum(classes[part]["n"] * np.array(classes[part]["layers"]) for part in ("prompt", "answer", "text"))
    assert np.allclose(weighted / classes["all tokens"]["n"], classes["all tokens"]["layers"], atol=1e-3)


def test_report_has_every_class(gated: AmbiLM) -> None:
    found = gate_shares(gated, [CHAT])
    table = markdown(found)
    for name, entry in found["classes"].items():
        assert f"| {name} | {entry['n']} | {entry['share']:.1f} |" in table
    labels = [label.get_text() for label in figure(found).axes[0].get_yticklabels()]
    assert labels == [f"{name} ({entry['n']})" for name, entry in found["classes"].items()]


def test_what_cannot_be_measured_is_refused(smollm2: AmbiLM, gated: AmbiLM) -> None:
    with pytest.raises(UserError, match="recipe ubmoe"):
        gate_shares(smollm2, [CHAT])
    with pytest.raises(UserError, match="with texts, or with conversations"):
        gate_shares(gated, [CHAT[:1]])
