"""A tiny Llama with the real tokenizer in a directory, and texts, pairs and conversations to train it on."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

if TYPE_CHECKING:
    from ambilm import AmbiLM


TALK = [
    {"role": "user", "content": "What is 2 + 2?"},
    {"role": "assistant", "content": "It is 4."},
    {"role": "user", "content": "And 3 + 3?"},
    {"role": "assistant", "content": " 6, of course.\n"},
    {"role": "user", "content": "Thanks."},
]


def first_tokens(tokenizer: PreTrainedTokenizerBase, count: int) -> Callable[[list[str]], list[list[int]]]:
    """Texts to their first ``count`` token ids, as pair stores take it."""
    return lambda texts: [ids[:count] for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]  # type: ignore[misc]


@pytest.fixture(scope="session")
def tiny_model(smollm2: "AmbiLM", tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(smollm2.tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, pad_token_id=2, eos_token_id=2, bos_token_id=1,
        tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(directory)
    smollm2.tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("text") / "shop.txt"
    paragraph = "Tom number {} went to the shop. He bought {} apples and was happy. Then he walked home in the rain."
    file.write_text("\n\n".join(["Too short.", *(paragraph.format(i, i) for i in range(30))]))
    return str(file)


@pytest.fixture(scope="session")
def pair_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    rows = [
        {
            "anchor": f"A man {i} eats.",
            "positive": f"A person {i} is eating.",
            "negative": "He sleeps." if i % 2 else None,
        }
        for i in range(20)
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    return str(file)


@pytest.fixture(scope="session")
def talk_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("talk") / "talk.jsonl"
    rows: list[dict[str, Any]] = [{"messages": TALK} for _ in range(6)]
    rows.append({"messages": TALK[:1]})  # no answer
    rows.append({"messages": TALK, "split": "valid"})
    file.write_text("\n".join(map(json.dumps, rows)))
    return str(file)
