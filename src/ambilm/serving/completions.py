"""``POST /v1/completions``: a text is continued by the untouched base, or filled in where a ``suffix`` or a ``[BLANK]`` says so."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Response
from fastapi import Request as Connection
from pydantic import BaseModel, Field

from ambilm.model.encoding import clean
from ambilm.model.generation import prompt_ids
from ambilm.model.infilling import Infilled
from ambilm.model.settings import BLANK
from ambilm.serving.failures import Refusal
from ambilm.serving.filling import FillJob, Plan, filled
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
    suffix: Annotated[str | None, Field(description="what stands after the text that is written")] = None

    @property
    def has_blanks(self) -> bool:
        """Whether something is to be filled in, and not continued."""
        return bool(self.suffix) or any(isinstance(text, str) and BLANK in text for text in self.texts)

    @property
    def texts(self) -> list[Any]:
        """The prompts; numbers where the prompt is one token array."""
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt  # type: ignore[return-value]

    def plans(self, service: Service) -> list[Plan]:
        """What is to be filled in, for each prompt.

        Raises:
            Refusal, UserError: for what infilling cannot do.
        """
        for text in self.texts:
            self._check_blanks(text)
        return [
            service.model.plan_infill(
                f"{text}{BLANK}{self.suffix}" if self.suffix else text, num_candidates=self.n or 1, min_tokens=1,
                max_tokens=self.max_tokens or DEFAULT_TOKENS, do_sample=not self.is_greedy, seed=self.seed,
                **self.shaping(),
            )
            for text in self.texts
        ]  # fmt: skip

    def _check_blanks(self, text: object) -> None:
        if not isinstance(text, str):
            raise Refusal(400, "Token arrays cannot be filled in: send texts.", param="prompt")
        if self.suffix and BLANK in text + self.suffix:
            raise Refusal(400, f"A suffix makes one blank; for {BLANK}s leave it out.", param="suffix")
        if self.presence_penalty or self.frequency_penalty:
            reason = "Infilling has no presence_penalty and no frequency_penalty: take repetition_penalty."
            raise Refusal(400, reason)
        if self.stops and not self.suffix:
            raise Refusal(400, f"stop has no meaning for {BLANK}s: each span ends by itself.", param="stop")

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
    if request.has_blanks:
        return await _filled_in(request, service, connection)
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


async def _filled_in(request: CompletionRequest, service: Service, connection: Connection) -> Completion | Response:
    """With a suffix, what stands before it; with blanks in the prompt, the whole text. Candidates, best first."""
    job = FillJob(service, await asyncio.to_thread(request.plans, service))
    found = await filled(job, connection)
    candidates = [(request.texts[item.place], candidate) for item in found for candidate in item.candidates]
    choices = [_choice(request, index, *candidate) for index, candidate in enumerate(candidates)]
    usage = TextUsage.of(job.read, sum(item.tokens for item in found))
    if request.stream:
        return await streamed(_whole_chunks(request, service, choices, usage))
    return _completion(service, choices, usage)


def _choice(request: CompletionRequest, index: int, prompt: str, candidate: Infilled) -> CompletionChoice:
    text = candidate.text
    finish: Finish = "stop" if candidate.ended else "length"
    if request.suffix:
        text = text[len(clean(prompt)) : len(text) - len(clean(request.suffix))]
        places = [place for stop in request.stops if (place := text.find(stop)) >= 0]
        if places:
            text, finish = text[: min(places)], "stop"
    return CompletionChoice(index=index, text=text, finish_reason=finish)


def _completion(service: Service, choices: list[CompletionChoice], usage: TextUsage | None = None) -> Completion:
    return Completion(
        id=f"cmpl-{uuid.uuid4().hex}", created=service.now(), model=service.name, choices=choices, usage=usage
    )


async def _whole_chunks(
    request: CompletionRequest, service: Service, choices: list[CompletionChoice], usage: TextUsage
) -> AsyncGenerator[BaseModel]:
    """A filling is one piece: the end of a span that reached its bound is cut once all of it is known."""
    chunk = _completion(service, [])
    for choice in choices:
        yield chunk.model_copy(update={"choices": [choice]})
    if request.stream_options and request.stream_options.include_usage:
        yield chunk.model_copy(update={"usage": usage})


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
