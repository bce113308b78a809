"""``POST /v1/chat/completions``: a conversation is answered, by the untouched base through its own chat template."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator
from typing import Annotated, Literal

from fastapi import APIRouter, Response
from fastapi import Request as Connection
from jinja2 import TemplateError
from pydantic import BaseModel, ConfigDict, Field

from ambilm.model.generation import chat_prompt, prompt_ids
from ambilm.serving.failures import Refusal
from ambilm.serving.generation import Count, SamplingRequest, TextJob, written
from ambilm.serving.schemas import TextUsage
from ambilm.serving.service import Served, Service
from ambilm.serving.streaming import STREAMED, streamed
from ambilm.serving.text import Finish

router = APIRouter()
DEFAULT_TOKENS = 1024  # or what the context has left


class TextPart(BaseModel):
    model_config = ConfigDict(extra="forbid")

    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    model_config = ConfigDict(extra="forbid")

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(min_length=1)]
    name: str | None = None

    def for_template(self) -> dict[str, str]:
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class ChatRequest(SamplingRequest):
    """OpenAI's request, for text. ``max_tokens`` is the older name of ``max_completion_tokens``."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Count | None = None
    max_tokens: Count | None = None

    def ids(self, service: Service) -> list[int]:
        """The conversation in the model's chat template, as token ids.

        Raises:
            Refusal: 400 when the template does not take these messages.
            UserError: when the model has none.
        """
        own = service.model
        try:
            prompt = chat_prompt(own.tokenizer, [message.for_template() for message in self.messages])
        except TemplateError as error:
            raise Refusal(400, f"The chat template refuses these messages: {error}", param="messages") from error
        return prompt_ids(own.tokenizer, prompt, own.settings.start_token_id)


class Answer(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str


class ChatChoice(BaseModel):
    index: int
    message: Answer
    logprobs: None = None
    finish_reason: Finish | None


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: TextUsage


class Delta(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str


class ChunkChoice(BaseModel):
    index: int
    delta: Delta
    logprobs: None = None
    finish_reason: Finish | None


class ChatChunk(BaseModel):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: TextUsage | None = None


@router.post("/v1/chat/completions", response_model=ChatCompletion, responses=STREAMED)
async def chat(request: ChatRequest, service: Served, connection: Connection) -> ChatCompletion | Response:
    """``n`` answers to a conversation."""
    service.check_name(request.model)
    ids = await asyncio.to_thread(request.ids, service)
    most = request.max_completion_tokens or request.max_tokens
    job = TextJob(service, request, [ids], most or max(min(DEFAULT_TOKENS, service.context_tokens - len(ids)), 1))
    if request.stream:
        return await streamed(_chunks(request, service, job, len(ids), connection))
    found = await written(service, job, connection)
    return ChatCompletion(
        id=_id(), created=service.now(), model=service.name,
        choices=[
            ChatChoice(index=index, message=Answer(content=choice.text), finish_reason=choice.finish)
            for index, choice in enumerate(found)
        ],
        usage=TextUsage.of(len(ids), sum(choice.tokens for choice in found)),
    )  # fmt: skip


def _id() -> str:
    return f"chatcmpl-{uuid.uuid4().hex}"


async def _chunks(
    request: ChatRequest, service: Service, job: TextJob, read: int, connection: Connection
) -> AsyncGenerator[BaseModel]:
    chunk = ChatChunk(id=_id(), created=service.now(), model=service.name, choices=[])
    tokens = 0
    async with contextlib.aclosing(service.follow("text", job, connection)) as pieces:
        async for piece in pieces:
            tokens += 1
            if piece.text or piece.finish:
                choice = ChunkChoice(index=piece.choice, delta=Delta(content=piece.text), finish_reason=piece.finish)
                yield chunk.model_copy(update={"choices": [choice]})
    if request.stream_options and request.stream_options.include_usage:
        yield chunk.model_copy(update={"usage": TextUsage.of(read, tokens)})
