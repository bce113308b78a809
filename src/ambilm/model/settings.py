"""What a model remembers about its own use: pooling, prompt, special tokens. Saved as ``ambilm.json``."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from transformers import PreTrainedTokenizerBase

from ambilm.errors import UserError

MAGNET_PROMPT = "Given the sentence, find its representation:"
PROMPT_EOL = 'This sentence : "{text}" means in one word:"'
REPRESENTATIVE_WORD = 'The representative word for sentence {text} is:"'
ECHO = "Rewrite the sentence: {text}, rewritten sentence: {text}"
BLANK = "[BLANK]"

LayoutName = Literal["bidirectional", "causal"]
Pooling = Literal["last", "mean", "weighted_mean"]

_PLAIN: dict[str, Any] = {"layout": "causal", "prompt": "", "include_prompt": True, "append_end": False}
_BOTH_WAYS = {**_PLAIN, "layout": "bidirectional", "sink": True}
# Ways to read a sentence vector that need no training, as settings. The templates are PromptEOL (Jiang et al. 2023), the
# representative word (Li et al. 2025) and Echo, whose mean is taken over the repetition (Springer et al. 2024, section 3).
READINGS: dict[str, dict[str, Any]] = {
    "causal-mean": {**_PLAIN, "pooling": "mean"},
    "causal-weighted-mean": {**_PLAIN, "pooling": "weighted_mean"},
    "causal-last": {**_PLAIN, "pooling": "last"},
    "bidirectional-mean": {**_BOTH_WAYS, "sink": False, "pooling": "mean"},
    "bidirectional-sink-mean": {**_BOTH_WAYS, "pooling": "mean"},
    "echo": {**_PLAIN, "pooling": "mean", "prompt": ECHO, "include_prompt": False},
    "representative-word": {**_PLAIN, "pooling": "last", "prompt": REPRESENTATIVE_WORD},
    "bidirectional-sink-prompt-eol": {**_BOTH_WAYS, "pooling": "last", "prompt": PROMPT_EOL},
    "prompt-eol": {**_PLAIN, "pooling": "last", "prompt": PROMPT_EOL},
}


def check_reading(name: str) -> str:
    """The name of one of ``READINGS``.

    Raises:
        UserError: for any other name.
    """
    if name not in READINGS:
        raise UserError(f"reading={name!r} does not exist: choose one of {', '.join(READINGS)}.")
    return name


class Settings(BaseModel):
    """Defaults of the jobs. An unadapted decoder embeds best through the PromptEOL template, read causally."""

    model_config = ConfigDict(extra="forbid")

    recipe: str | None = Field(None, description="the recipe that adapted the model, None for a base model")
    layout: LayoutName = Field("causal", description="who sees whom in encode and encode_tokens")
    sink: bool = Field(
        True,
        description="bidirectional texts begin with the start token, which sees only itself; false: the papers' mask",
    )
    pooling: Pooling = Field("last", description="how token vectors become a sentence vector")
    prompt: str = Field(PROMPT_EOL, description="a prefix, or a template holding {text} once or more often")
    prompts: dict[str, str] = Field(
        default_factory=dict,
        description="other prompts in mteb's tasks, by its names: a task, a task type, or `query` and `document`",
    )
    append_end: bool = Field(False, description="append the end token, whose vector is the sentence for pooling 'last'")
    include_prompt: bool = Field(
        True,
        description="whether mean pooling counts the prompt's tokens; false: the text's alone, the last time it stands",
    )
    word_shift: Literal[0, 1] = Field(0, description="1: a word is read one token earlier (after MNTP)")
    mask_token_id: int = Field(description="the token that stands for a masked one in MNTP")
    start_token_id: int = Field(
        description="stands before a text, so that a first token has something to be predicted from"
    )
    end_token_id: int = Field(description="ends a sentence that is pooled at its last token")
    end_of_span_token_id: int = Field(description="says that a missing span is complete")
    max_length: int = Field(512, ge=8, description="longest text in tokens; longer ones are cut at the end")

    def read_as(self, name: str | None) -> Settings:
        """These settings with one of ``READINGS``; unchanged for None.

        Raises:
            UserError: for a name that is not among them.
        """
        return self if name is None else self.model_copy(update=READINGS[check_reading(name)])

    def appended_end(self, pooling: Pooling, prompt: str) -> int | None:
        """The end token where a text that is embedded gets one: a template ends in the place that is read already."""
        return self.end_token_id if self.append_end and pooling == "last" and "{text}" not in prompt else None

    @classmethod
    def for_tokenizer(cls, tokenizer: PreTrainedTokenizerBase) -> Settings:
        """Special tokens by what the vocabulary offers; an existing rare token serves as mask, as in LLM2Vec."""
        end = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.pad_token_id
        if end is None:
            end = 0
        return cls(
            mask_token_id=_mask_token(tokenizer, end),
            start_token_id=_start_token(tokenizer, end),
            end_token_id=end,
            end_of_span_token_id=end,
        )


def _token_id(tokenizer: PreTrainedTokenizerBase, token: str) -> int | None:
    identifier = tokenizer.get_vocab().get(token)
    return None if identifier is None else int(identifier)


def _mask_token(tokenizer: PreTrainedTokenizerBase, fallback: int) -> int:
    if tokenizer.mask_token_id is not None:
        return int(tokenizer.mask_token_id)
    for token in ("<mask>", "[MASK]", "_"):
        identifier = _token_id(tokenizer, token)
        if identifier is not None:
            return identifier
    return int(tokenizer.unk_token_id) if tokenizer.unk_token_id is not None else fallback


def _start_token(tokenizer: PreTrainedTokenizerBase, fallback: int) -> int:
    """What the model saw before documents in pre-training: the BOS it adds itself, or GPT-style ``<|endoftext|>``."""
    ids = tokenizer("a").input_ids
    if tokenizer.bos_token_id is not None and ids and ids[0] == tokenizer.bos_token_id:
        return int(tokenizer.bos_token_id)
    identifier = _token_id(tokenizer, "<|endoftext|>")
    if identifier is not None:
        return identifier
    return int(tokenizer.bos_token_id) if tokenizer.bos_token_id is not None else fallback
