"""``/v1/embeddings``, asked by the official client."""

import base64
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import openai
import pytest
from tests.serving.conftest import HEADERS

from ambilm.model.encoding import clean

if TYPE_CHECKING:
    from ambilm import AmbiLM

TEXTS = ["A dog runs in the park.", "Stocks fell.", "She walked home and slept, \x00 tired."]


def vectors_of(client: openai.OpenAI, **options: Any) -> np.ndarray:
    answer = client.embeddings.create(model="smollm2", **options)
    assert [item.index for item in answer.data] == list(range(len(answer.data)))
    return np.array([item.embedding for item in answer.data], np.float32)


@pytest.mark.parametrize("encoding", [{}, {"encoding_format": "float"}, {"encoding_format": "base64"}])
def test_vectors_are_those_of_encode(client: openai.OpenAI, smollm2: "AmbiLM", encoding: dict[str, Any]) -> None:
    answer = client.embeddings.create(model="smollm2", input=TEXTS, **encoding)
    rows: list[Any] = [item.embedding for item in answer.data]
    if encoding.get("encoding_format") == "base64":
        rows = [np.frombuffer(base64.b64decode(row), "<f4") for row in rows]
    np.testing.assert_allclose(rows, smollm2.encode(TEXTS, normalize_embeddings=True), atol=1e-5)
    assert answer.usage.prompt_tokens == sum(map(len, smollm2.tokenizer([clean(text) for text in TEXTS])["input_ids"]))  # type: ignore[arg-type]
    assert answer.model == "smollm2"


def test_dimensions_are_the_first_ones_at_unit_length(client: openai.OpenAI, smollm2: "AmbiLM") -> None:
    found = vectors_of(client, input=TEXTS[0], dimensions=7)
    assert found.shape == (1, 7)
    expected = smollm2.encode(TEXTS[0], truncate_dim=7, normalize_embeddings=True)
    np.testing.assert_allclose(found[0], expected, atol=1e-5)


def test_token_arrays_are_the_models_own_tokens(client: openai.OpenAI, smollm2: "AmbiLM") -> None:
    tokens = smollm2.tokenizer(TEXTS[:2])["input_ids"]
    expected = vectors_of(client, input=TEXTS[:2])
    np.testing.assert_allclose(vectors_of(client, input=tokens), expected, atol=1e-5)
    np.testing.assert_allclose(vectors_of(client, input=tokens[0]), expected[:1], atol=1e-5)  # type: ignore[index]


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"input": ""}, 400, "input: "),
        ({"input": []}, 400, "input: "),
        ({"input": [""]}, 400, "input: "),
        ({"input": [[]]}, 400, "input: "),
        ({"input": {"a": 1}}, 400, "input: "),
        ({"input": [10**9]}, 400, "vocabulary"),
        ({"input": [-1]}, 400, "input: "),
        ({"input": [1.5]}, 400, "input: "),
        ({"input": ["a"] * 2049}, 400, "2,048"),
        ({"input": "a", "dimensions": 577}, 400, "576"),
        ({"input": "a", "dimensions": 0}, 400, "dimensions: "),
        ({"input": "a", "encoding_format": "int8"}, 400, "encoding_format: "),
        ({"input": "a", "misspelt": 1}, 400, "misspelt: "),
        ({"input": "a", "model": "gpt-4"}, 404, "'smollm2'"),
        ({}, 400, "input: "),
    ],
)
def test_mistakes_are_told_in_one_sentence(address: str, body: dict[str, Any], status: int, says: str) -> None:
    answer = httpx.post(f"{address}/v1/embeddings", json={"model": "smollm2", **body}, headers=HEADERS)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert says in error["message"] and len(error["message"].splitlines()) == 1
    assert len(error["message"]) < 300
