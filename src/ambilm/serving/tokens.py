"""``POST /v1/tokens``: one vector for each word of each sentence."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

import numpy as np
from fastapi import APIRouter, Response
from fastapi import Request as Connection
from pydantic import BaseModel, Field
from pydantic_core import to_json

from ambilm.model.encoding import Words, tokenize_words
from ambilm.serving.embeddings import written
from ambilm.serving.failures import Refusal
from ambilm.serving.schemas import Request, Text, Usage
from ambilm.serving.service import Served, Service
from ambilm.serving.vectors import VectorJob

router = APIRouter()


class TokensRequest(Request):
    """Sentences as texts, cut into words at white space, or as lists of words."""

    input: Text | Annotated[list[Text], Field(min_length=1)] | Annotated[list[list[str]], Field(min_length=1)]
    encoding_format: Literal["float", "base64"] = "float"
    user: str | None = None

    def sentences(self, limit: int) -> list[list[str]]:
        """The words of each sentence.

        Raises:
            Refusal: 400 for too many words.
        """
        items = [self.input] if isinstance(self.input, str) else self.input
        found = [item.split() if isinstance(item, str) else item for item in items]
        words = sum(map(len, found))
        if words > limit or len(found) > limit:
            raise Refusal(400, f"{words:,} words are more than {limit:,}: send them in parts.", param="input")
        return found


class SentenceTokens(BaseModel):
    """The words of a sentence and their vectors; in base64, (words, dimension) little-endian float32 numbers."""

    object: Literal["tokens"] = "tokens"
    index: int
    words: list[str]
    embeddings: list[list[float]] | str


class TokensList(BaseModel):
    object: Literal["list"] = "list"
    data: list[SentenceTokens]
    model: str
    usage: Usage


@router.post("/v1/tokens", response_model=TokensList)
async def tokens(request: TokensRequest, service: Served, connection: Connection) -> Response:
    """What ``encode_tokens`` gives: raw vectors, not scaled to length 1."""
    service.check_name(request.model)
    sentences = request.sentences(service.limits.inputs)
    words = await asyncio.to_thread(_tokenized, service, sentences)
    lengths = [len(item.ids) for item in words]
    found = await service.result("tokens", VectorJob(words, lengths), connection)
    usage = Usage(prompt_tokens=sum(lengths), total_tokens=sum(lengths))
    return Response(
        await asyncio.to_thread(_answer, request, service.name, sentences, found, usage), media_type="application/json"
    )


def _tokenized(service: Service, sentences: list[list[str]]) -> list[Words]:
    own = service.model
    return tokenize_words(own.tokenizer, sentences, own.settings.start_token_id, own.settings.max_length)


def _answer(
    request: TokensRequest, name: str, sentences: list[list[str]], found: list[np.ndarray], usage: Usage
) -> bytes:
    data = [
        SentenceTokens(
            index=number, words=words,
            embeddings=[written(row, "float") for row in vectors]  # type: ignore[misc]
            if request.encoding_format == "float" else written(vectors, "base64"),
        )
        for number, (words, vectors) in enumerate(zip(sentences, found, strict=True))
    ]  # fmt: skip
    return to_json(TokensList(data=data, model=name, usage=usage))
