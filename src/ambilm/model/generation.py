"""Text left to right by the untouched base model: everything here is transformers' own ``generate``.

A model that was trained as a prefix-LM sees its prompt both ways: the prompt is read once by a view, into a cache that
``generate`` goes on from.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    DynamicCache,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteriaList,
    TextIteratorStreamer,
)

from ambilm.attention import Layout, Tokens
from ambilm.errors import UserError
from ambilm.model.encoding import clean
from ambilm.model.forward import cache_keyword, hidden_states

Message = dict[str, str]


@dataclass(frozen=True)
class PrefixReader:
    """Reads prompts both ways for ``generate`` to go on from (prefix-LM; Raffel et al. 2020, section 3.2).

    Attributes:
        view: the weights that will generate, attending by layout.
        sink: whether the first token of a prompt sees only itself.
    """

    view: PreTrainedModel
    sink: bool

    def __call__(self, inputs: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
        """The inputs of ``generate`` with a cache of all tokens but the last of each prompt.

        The last one is left to ``generate``: looking back it sees the whole prompt just the same.

        Raises:
            UserError: for ``use_cache=False``, which would forget what was read.
        """
        if options.get("use_cache") is False:
            raise UserError("layout='prefix' keeps the prompt in a cache: leave use_cache=False out.")
        mask = inputs["attention_mask"]  # (prompts, longest)
        tokens = Tokens.padded(mask.sum(1).tolist(), torch.zeros_like(mask, dtype=torch.bool), side="left")
        cache = DynamicCache()
        layout = Layout.of(tokens.with_sinks() if self.sink else tokens)
        hidden_states(self.view, inputs["input_ids"], layout, cache)
        cache.crop(-1)
        copies = max(options.get(name) or 1 for name in ("num_beams", "num_return_sequences"))
        if copies > 1:  # generate repeats the ids, but not a cache that it is given
            cache.batch_repeat_interleave(copies)
        return {**inputs, cache_keyword(self.view): cache}


def prompt_ids(tokenizer: PreTrainedTokenizerBase, prompt: str, start: int) -> list[int]:
    """Token ids with the special tokens that the tokenizer adds; an empty prompt is the start token."""
    return list(tokenizer(clean(prompt))["input_ids"]) or [start]  # type: ignore[arg-type]


def _inputs(
    base: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: list[str], start: int
) -> dict[str, Any]:
    """Left-padded ids and their mask, so that every continuation starts at the right edge."""
    rows = [prompt_ids(tokenizer, prompt, start) for prompt in prompts]
    width = max(len(row) for row in rows)
    ids = torch.full((len(rows), width), tokenizer.pad_token_id or 0)
    mask = torch.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, width - len(row) :] = torch.tensor(row)
        mask[number, width - len(row) :] = 1
    return {"input_ids": ids.to(base.device), "attention_mask": mask.to(base.device)}


def generate(
    base: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: list[str], start: int, options: dict[str, Any],
    prefix: PrefixReader | None = None,
) -> list[str]:  # fmt: skip
    """Continuations (without the prompts) of each prompt, which ``prefix`` reads both ways."""
    inputs = _inputs(base, tokenizer, prompts, start)
    options = _with_pad(tokenizer, options)
    with torch.inference_mode():
        output = _call(base, inputs, options, prefix)
    sequences = output if isinstance(output, torch.Tensor) else output.sequences
    return tokenizer.batch_decode(sequences[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def stream(
    base: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: str, start: int, options: dict[str, Any],
    prefix: PrefixReader | None = None,
) -> Iterator[str]:  # fmt: skip
    """Pieces of the continuation of one prompt, which ``prefix`` reads both ways, as soon as they are decoded."""
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)  # type: ignore[arg-type]
    inputs = _inputs(base, tokenizer, [prompt], start)
    failure: list[BaseException] = []
    dropped = threading.Event()

    def stop(ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
        return torch.full((ids.shape[0],), dropped.is_set(), device=ids.device)

    def work() -> None:
        try:
            with torch.inference_mode():
                criteria = StoppingCriteriaList([*options.get("stopping_criteria", []), stop])
                given = {**_with_pad(tokenizer, options), "streamer": streamer, "stopping_criteria": criteria}
                _call(base, inputs, given, prefix)
        except BaseException as error:
            failure.append(error)
            streamer.end()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield from streamer
    finally:  # also when the reader stops early: nobody waits for the rest
        dropped.set()
        thread.join()
    if failure:
        raise failure[0]


def _with_pad(tokenizer: PreTrainedTokenizerBase, options: dict[str, Any]) -> dict[str, Any]:
    return {"pad_token_id": tokenizer.pad_token_id, **options}


def _call(base: PreTrainedModel, inputs: dict[str, Any], options: dict[str, Any], prefix: PrefixReader | None) -> Any:
    if prefix is not None:
        inputs = prefix(inputs, options)
    try:
        return base.generate(**inputs, **options)  # type: ignore[operator]
    except ValueError as error:  # transformers names a wrong option in its first line
        raise UserError(f"generate refused its options: {str(error).splitlines()[0]}") from error


def chat_prompt(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> str:
    """The messages in the model's own chat template.

    Raises:
        UserError: when the model has no chat template, or a message lacks role or content.
    """
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not {"role", "content"} <= set(message):
            raise UserError(f"Message {number} needs 'role' and 'content'.")
    if not tokenizer.chat_template:
        raise UserError(
            "This model has no chat template, so it cannot chat: use generate, or an instruction-tuned model."
        )
    prompt = str(tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True))
    # generate tokenises with special tokens: a start token that the template writes too would stand twice.
    bos = tokenizer.bos_token
    adds_bos = bos is not None and tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id]  # type: ignore[index]
    return prompt.removeprefix(str(bos)) if adds_bos else prompt
