"""Text left to right by the untouched base model: everything here is transformers' own ``generate``."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, StoppingCriteriaList, TextIteratorStreamer

from ambilm.errors import UserError
from ambilm.model.encoding import clean

Message = dict[str, str]


def _inputs(
    base: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: list[str], start: int
) -> dict[str, Any]:
    """Left-padded ids and their mask, so that every continuation starts at the right edge."""
    rows = [tokenizer(clean(prompt))["input_ids"] or [start] for prompt in prompts]
    width = max(len(row) for row in rows)  # type: ignore[arg-type]
    ids = torch.full((len(rows), width), tokenizer.pad_token_id or 0)
    mask = torch.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, width - len(row) :] = torch.tensor(row)  # type: ignore[arg-type]
        mask[number, width - len(row) :] = 1  # type: ignore[arg-type]
    return {"input_ids": ids.to(base.device), "attention_mask": mask.to(base.device)}


def generate(
    base: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: list[str], start: int, options: dict[str, Any]
) -> list[str]:
    """Continuations (without the prompts) of each prompt."""
    inputs = _inputs(base, tokenizer, prompts, start)
    options = _with_pad(tokenizer, options)
    with torch.inference_mode():
        output = _call(base, inputs, options)
    sequences = output if isinstance(output, torch.Tensor) else output.sequences
    return tokenizer.batch_decode(sequences[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def stream(
    base: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: str, start: int, options: dict[str, Any]
) -> Iterator[str]:
    """Pieces of the continuation of one prompt, as soon as they are decoded."""
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
                _call(base, inputs, given)
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


def _call(base: PreTrainedModel, inputs: dict[str, Any], options: dict[str, Any]) -> Any:
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
