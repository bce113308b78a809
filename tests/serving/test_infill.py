"""``/v1/infill``, the ``suffix`` and ``[BLANK]``s of ``/v1/completions``, and ``/v1/tokens``."""

import base64
import concurrent.futures
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import openai
import pytest
from tests.serving.conftest import HEADERS, client_of, running

if TYPE_CHECKING:
    from ambilm import AmbiLM

TEXT = "She missed the bus, so [BLANK] She was late for [BLANK] that day."
BEFORE, AFTER = "He put the kettle on, and when the water boiled he", " a cup of tea for his sister."
GREEDY: dict[str, Any] = {"model": "smollm2", "temperature": 0}


def post(address: str, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{address}/v1/{path}", json={"model": "smollm2", **body}, headers=HEADERS, timeout=120)


def test_infill_is_that_of_the_model(address: str, smollm2: "AmbiLM") -> None:
    answer = post(address, "infill", text=TEXT, n=3, max_tokens=[8, 4]).json()
    expected = smollm2.infill(TEXT, num_candidates=3, max_tokens=[8, 4]).candidates
    assert [item["text"] for item in answer["candidates"]] == [item.text for item in expected]
    assert [item["spans"] for item in answer["candidates"]] == [item.spans for item in expected]
    np.testing.assert_allclose(
        [item["score"] for item in answer["candidates"]], [item.score for item in expected], atol=1e-2
    )
    finishes = ["stop" if item.ended else "length" for item in expected]
    assert [item["finish_reason"] for item in answer["candidates"]] == finishes
    assert answer["usage"]["completion_tokens"] > 3


def test_a_suffix_is_what_follows_the_text(client: openai.OpenAI, smollm2: "AmbiLM") -> None:
    answer = client.completions.create(prompt=BEFORE, suffix=AFTER, max_tokens=8, **GREEDY)
    expected = smollm2.infill(f"{BEFORE}[BLANK]{AFTER}", max_tokens=8)
    assert BEFORE + answer.choices[0].text + AFTER == expected.text
    stream: Any = client.completions.create(prompt=BEFORE, suffix=AFTER, max_tokens=8, stream=True, **GREEDY)
    assert "".join(chunk.choices[0].text for chunk in stream) == answer.choices[0].text
    stop = answer.choices[0].text[2:5]
    cut = client.completions.create(prompt=BEFORE, suffix=AFTER, max_tokens=8, stop=stop, **GREEDY).choices[0]
    assert cut.text == answer.choices[0].text[: answer.choices[0].text.index(stop)] and cut.finish_reason == "stop"


def test_blanks_in_a_prompt_give_the_whole_text(client: openai.OpenAI, smollm2: "AmbiLM") -> None:
    answer = client.completions.create(prompt=[TEXT, "One [BLANK] three."], max_tokens=5, **GREEDY)
    expected = [smollm2.infill(text, max_tokens=5).text for text in (TEXT, "One [BLANK] three.")]
    assert [choice.text for choice in answer.choices] == expected
    assert client.completions.create(prompt="One two", suffix="", max_tokens=2, **GREEDY).choices[0].text == (
        smollm2.generate("One two", max_new_tokens=2, do_sample=False)
    )


def test_neighbours_change_no_filling_in_bfloat16(smollm2_bf16: "AmbiLM") -> None:
    """Different numbers of rows, blanks and tokens at once, drawn with a seed, beside embeddings and continuations."""
    bodies = [
        {"text": TEXT, "n": n, "max_tokens": most, "temperature": heat, "seed": 3}
        for n, most, heat in ((1, 6, 0), (3, 9, 1), (2, 4, 1), (1, 12, 1))
    ]
    with running(smollm2_bf16) as (address, _):

        def ask(body: dict[str, Any]) -> Any:
            return post(address, "infill", **body).json()["candidates"]

        alone = [ask(body) for body in bodies]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            pool.submit(client_of(address).embeddings.create, model="smollm2", input=[TEXT] * 30)
            pool.submit(client_of(address).completions.create, model="smollm2", prompt=BEFORE, n=3)
            assert list(pool.map(ask, bodies)) == alone


def test_word_vectors(address: str, smollm2: "AmbiLM") -> None:
    sentences = [["U.N.", "official", "leaves", "Baghdad"], ["Yes"]]
    expected = smollm2.encode_tokens(sentences)
    answer = post(address, "tokens", input=sentences).json()
    assert [item["words"] for item in answer["data"]] == sentences
    for item, vectors in zip(answer["data"], expected, strict=True):
        np.testing.assert_allclose(item["embeddings"], vectors, atol=1e-3)
    packed = post(address, "tokens", input=[" ".join(words) for words in sentences], encoding_format="base64").json()
    rows = np.frombuffer(base64.b64decode(packed["data"][0]["embeddings"]), "<f4").reshape(4, -1)
    np.testing.assert_allclose(rows, expected[0], atol=1e-3)


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("infill", {"text": "nothing missing"}, "nothing to fill in"),
        ("infill", {"text": "a [BLANK] [BLANK] b"}, "Two blanks"),
        ("infill", {"text": TEXT, "max_tokens": [1, 2, 3]}, "3 values for 2 blanks"),
        ("infill", {"text": TEXT, "max_tokens": 10**6}, "shorten the text"),
        ("infill", {"text": TEXT, "max_tokens": 0}, "at least 1"),
        ("infill", {"text": TEXT, "n": 17}, "n=17"),
        ("infill", {"text": TEXT, "n": 8, "top_k": 2}, "first tokens"),
        ("infill", {"text": TEXT, "stream": True}, "stream: "),
        ("completions", {"prompt": [[1, 2]], "suffix": "a"}, "Token arrays"),
        ("completions", {"prompt": "a [BLANK] b", "suffix": "c"}, "leave it out"),
        ("completions", {"prompt": "a [BLANK] b", "stop": "c"}, "no meaning"),
        ("completions", {"prompt": "a", "suffix": "c", "presence_penalty": 1}, "repetition_penalty"),
        ("tokens", {"input": ["word " * 600]}, "split it"),
        ("tokens", {"input": [["a"] * 2049]}, "2,048"),
        ("tokens", {"input": [[1]]}, "input: "),
    ],
)
def test_mistakes_are_told(address: str, path: str, body: dict[str, Any], says: str) -> None:
    answer = post(address, path, **body)
    assert answer.status_code == 400
    assert says in answer.json()["error"]["message"]
