"""``POST /v1/completions``: a text is continued, by the untouched base."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator
from typing import Annotated, Literal

from fastapi import APIRouter, Response
from fastapi import Request as Connection
from pydantic import BaseModel, Field

from ambilm.model.generation import prompt_ids
from ambilm.serving.failures import Refusal
from ambilm.serving.generation import Count, SamplingRequest, TextJob, written
from ambilm.serving.schemas import TextUsage, TokenId
from ambilm.serving.service import Served, Service
from ambilm.serving.streaming import STREAMED, streamed
from ambilm.serving.text import Finish

router = APIRouter()
Tokens = Annotated[list[TokenId], Field(min_length=1)]
DEFAULT_TOKENS = 16  # OpenAI's


class CompletionRequest(SamplingRequest):
    """OpenAI's request. Token arrays hold ids of the model's own tokenizer."""

    prompt: str | Tokens | Annotated[list[str], Field(min_length=1)] | Annotated[list[Tokens], Field(min_length=1)]
    max_tokens: Count | None = None

    def rows(self, service: Service) -> list[list[int]]:
        """Token ids of each prompt.

        Raises:
            Refusal: 400 for too many prompts, or an id that the vocabulary has not.
        """
        single = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        prompts = [self.prompt] if single else self.prompt
        if len(prompts) > service.limits.inputs:
            reason = f"{len(prompts):,} prompts are more than {service.limits.inputs:,}: send them in parts."
            raise Refusal(400, reason, param="prompt")
        own = service.model
        return [
            prompt_ids(own.tokenizer, item, own.settings.start_token_id)
            if isinstance(item, str)
            else service.check_tokens(item)  # type: ignore[arg-type]
            for item in prompts
        ]


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: None = None
    finish_reason: Finish | None


class Completion(BaseModel):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: TextUsage | None = None


@router.post("/v1/completions", response_model=Completion, responses=STREAMED)
async def completions(request: CompletionRequest, service: Served, connection: Connection) -> Completion | Response:
    """``n`` continuations of each prompt, those of the first prompt first."""
    service.check_name(request.model)
    rows = await asyncio.to_thread(request.rows, service)
    job = TextJob(service, request, rows, request.max_tokens or DEFAULT_TOKENS)
    read = sum(map(len, rows))
    if request.stream:
        return await streamed(_chunks(request, service, job, read, connection))
    found = await written(service, job, connection)
    choices = [
        CompletionChoice(index=index, text=choice.text, finish_reason=choice.finish)
        for index, choice in enumerate(found)
    ]
    usage = TextUsage.of(read, sum(choice.tokens for choice in found))
    return _completion(service, choices, usage)


def _completion(service: Service, choices: list[CompletionChoice], usage: TextUsage | None = None) -> Completion:
    return Completion(
        id=f"cmpl-{uuid.uuid4().hex}", created=service.now(), model=service.name, choices=choices, usage=usage
    )


async def _chunks(
    request: CompletionRequest, service: Service, job: TextJob, read: int, connection: Connection
) -> AsyncGenerator[BaseModel]:
    chunk = _completion(service, [])
    tokens = 0
    async with contextlib.aclosing(service.follow("text", job, connection)) as pieces:
        async for piece in pieces:
            tokens += 1
            if piece.text or piece.finish:
                choice = CompletionChoice(index=piece.choice, text=piece.text, finish_reason=piece.finish)
                yield chunk.model_copy(update={"choices": [choice]})
    if request.stream_options and request.stream_options.include_usage:
        yield chunk.model_copy(update={"usage": TextUsage.of(read, tokens)})
