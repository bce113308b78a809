"""``/v1/completions`` and ``/v1/chat/completions``, asked by the official client."""

import concurrent.futures
import copy
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest
from tests.serving.conftest import HEADERS, client_of, running, wait_until

if TYPE_CHECKING:
    from ambilm import AmbiLM

PROMPTS = ["Once upon a time", "The three largest countries of the world are", "To bake bread,", "x"]
CHAT: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name a colour."}]
GREEDY: dict[str, Any] = {"model": "smollm2", "temperature": 0}
SAMPLED: dict[str, Any] = {"model": "smollm2", "temperature": 1.2, "top_p": 0.9, "max_tokens": 12}


def test_greedy_text_is_that_of_generate(client: openai.OpenAI, smollm2: "AmbiLM") -> None:
    answer = client.completions.create(prompt=PROMPTS, max_tokens=12, **GREEDY)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    expected = [smollm2.generate(prompt, max_new_tokens=12, do_sample=False) for prompt in PROMPTS]
    assert [choice.text for choice in answer.choices] == expected
    assert {choice.finish_reason for choice in answer.choices} == {"length"}
    tokens = smollm2.tokenizer(PROMPTS)["input_ids"]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (sum(map(len, tokens)), 48)  # type: ignore[arg-type]
    again = client.completions.create(prompt=tokens, max_tokens=12, **GREEDY)  # type: ignore[arg-type]
    assert [choice.text for choice in again.choices] == expected


def test_a_stream_is_the_same_text(client: openai.OpenAI) -> None:
    whole = client.completions.create(prompt=PROMPTS[:2], max_tokens=12, **GREEDY)
    texts, ends, usage = ["", ""], {}, None
    stream: Any = client.completions.create(
        prompt=PROMPTS[:2], max_tokens=12, stream=True, stream_options={"include_usage": True}, **GREEDY
    )
    for chunk in stream:
        usage = chunk.usage
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            ends[choice.index] = choice.finish_reason
    assert texts == [choice.text for choice in whole.choices]
    assert ends == {0: "length", 1: "length"} and usage == whole.usage


def test_chat_is_that_of_chat(client: openai.OpenAI, smollm2: "AmbiLM") -> None:
    expected = smollm2.chat(CHAT, max_new_tokens=24, do_sample=False)
    answer = client.chat.completions.create(messages=CHAT, max_completion_tokens=24, **GREEDY)
    assert answer.choices[0].message.content == expected and answer.choices[0].message.role == "assistant"
    parts = [{"role": item["role"], "content": [{"type": "text", "text": item["content"]}]} for item in CHAT]
    stream: Any = client.chat.completions.create(messages=parts, max_tokens=24, stream=True, **GREEDY)  # type: ignore[arg-type]
    pieces = [chunk.choices[0].delta.content for chunk in stream]
    assert "".join(pieces) == expected and len(pieces) > 3


def test_a_text_ends_by_itself_or_at_a_stop(client: openai.OpenAI) -> None:
    chat = client.chat.completions.create(messages=CHAT, **GREEDY)
    assert chat.choices[0].finish_reason == "stop"
    whole = client.completions.create(prompt=PROMPTS[0], max_tokens=12, **GREEDY).choices[0].text
    for stop in (whole[9:16], whole[10]):
        answer = client.completions.create(prompt=PROMPTS[0], max_tokens=12, stop=["nowhere", stop], **GREEDY)
        assert answer.choices[0].text == whole[: whole.index(stop)]
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage is not None and answer.usage.completion_tokens < 12


def test_characters_of_several_tokens_come_whole(client: openai.OpenAI) -> None:
    stream: Any = client.chat.completions.create(
        messages=[{"role": "user", "content": "Repeat these emoji exactly: 🦜🦜🦜🦜"}],
        stream=True,
        max_tokens=24,
        **GREEDY,
    )
    pieces = [chunk.choices[0].delta.content for chunk in stream]
    assert "🦜" in "".join(pieces) and not any("\ufffd" in piece for piece in pieces)


def test_a_seed_draws_the_same_whoever_shares_the_batch(client: openai.OpenAI) -> None:
    """Alone, beside one another, and beside a text that is longer than one width of attention."""
    long = "The ship left the harbour. " * 60

    def ask(prompt: str, seed: int) -> list[str]:
        return [choice.text for choice in client.completions.create(prompt=prompt, seed=seed, n=2, **SAMPLED).choices]

    alone = [ask(prompt, seed) for seed, prompt in enumerate(PROMPTS)]
    assert all(first != second for first, second in alone)
    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        pool.submit(ask, long, 9)
        assert list(pool.map(ask, PROMPTS, range(4))) == alone


def test_in_bfloat16_neighbours_change_no_token(smollm2_bf16: "AmbiLM") -> None:
    prompts = [*PROMPTS, "The ship left the harbour. " * 60, "1, 2, 3,"]
    with running(smollm2_bf16) as (address, _):
        client = client_of(address)

        def ask(prompt: str | list[str]) -> list[str]:
            answer = client.completions.create(prompt=prompt, max_tokens=10, seed=1, model="smollm2")
            return [choice.text for choice in answer.choices]

        def greedy(prompt: str | list[str]) -> list[str]:
            return [choice.text for choice in client.completions.create(prompt=prompt, max_tokens=10, **GREEDY).choices]

        assert greedy(prompts) == [text for prompt in prompts for text in greedy(prompt)]
        first = ask(prompts[0])
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            assert set(map(tuple, pool.map(ask, [prompts[0]] * 6))) == {tuple(first)}


def test_a_long_prompt_is_read_in_chunks(client: openai.OpenAI, smollm2: "AmbiLM") -> None:
    prompt = "The ship left the harbour at dawn, and nobody saw it leave. " * 50
    assert len(smollm2.tokenizer(prompt)["input_ids"]) > 600  # type: ignore[arg-type]
    answer = client.completions.create(prompt=prompt, max_tokens=8, **GREEDY)
    assert answer.choices[0].text == smollm2.generate(prompt, max_new_tokens=8, do_sample=False)


def test_penalties_and_shapers_take_effect(client: openai.OpenAI) -> None:
    ids = [1, 1, 1]
    plain = client.completions.create(prompt=ids, max_tokens=16, **GREEDY).choices[0].text
    for options in ({"frequency_penalty": 2.0}, {"presence_penalty": 2.0}, {"extra_body": {"repetition_penalty": 1.5}}):
        assert client.completions.create(prompt=ids, max_tokens=16, **GREEDY, **options).choices[0].text != plain
    narrow = client.completions.create(prompt=ids, model="smollm2", max_tokens=16, extra_body={"top_k": 1})
    assert narrow.choices[0].text == plain


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("completions", {"prompt": []}, "prompt: "),
        ("completions", {"prompt": [10**6]}, "vocabulary"),
        ("completions", {"prompt": "a", "max_tokens": 0}, "max_tokens: "),
        ("completions", {"prompt": "a", "max_tokens": 10**6}, "do not fit"),
        ("completions", {"prompt": "a", "n": 17}, "n=17"),
        ("completions", {"prompt": "a", "temperature": -1}, "temperature: "),
        ("completions", {"prompt": "a", "temperature": "hot"}, "temperature: "),
        ("completions", {"prompt": "a", "top_p": 0}, "top_p: "),
        ("completions", {"prompt": "a", "stop": [""]}, "stop: "),
        ("completions", {"prompt": "a", "seed": 2**63}, "seed: "),
        ("completions", {"prompt": "a", "stream_options": {"a": 1}}, "stream_options: "),
        ("chat/completions", {"messages": []}, "messages: "),
        ("chat/completions", {"messages": [{"role": "user"}]}, "messages: "),
        ("chat/completions", {"messages": [{"role": "wizard", "content": "a"}]}, "messages: "),
        ("chat/completions", {"messages": [{"role": "user", "content": "word " * 9000}]}, "do not fit"),
        ("chat/completions", {"messages": [{"role": "user", "content": "a"}], "tools": []}, "tools: "),
    ],
)
def test_mistakes_are_told(address: str, path: str, body: dict[str, Any], says: str) -> None:
    for stream in (False, True):
        answer = httpx.post(
            f"{address}/v1/{path}", json={"model": "smollm2", "stream": stream, **body}, headers=HEADERS, timeout=60
        )
        assert answer.status_code == 400
        assert says in answer.json()["error"]["message"]


def test_a_model_without_chat_template_says_so(smollm2: "AmbiLM") -> None:
    plain = copy.copy(smollm2)
    plain.tokenizer = copy.deepcopy(smollm2.tokenizer)
    plain.tokenizer.chat_template = None
    with running(plain) as (address, _), pytest.raises(openai.BadRequestError, match="no chat template"):
        client_of(address).chat.completions.create(messages=CHAT, **GREEDY)


def test_hanging_up_within_a_stream_frees_its_rows(smollm2: "AmbiLM") -> None:
    with running(smollm2) as (address, service):
        lane: Any = service.scheduler.lanes["text"]
        with client_of(address).completions.create(prompt="a", stream=True, max_tokens=4000, **GREEDY) as stream:
            next(iter(stream))
            wait_until(lambda: lane.batch.rows == 1)
        wait_until(lambda: lane.batch.rows == 0 and service.scheduler.requests == 0)
