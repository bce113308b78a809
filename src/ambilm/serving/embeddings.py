"""``POST /v1/embeddings``: sentence vectors of length 1."""

from __future__ import annotations

import asyncio
import base64
from typing import Annotated, Literal

import numpy as np
from fastapi import APIRouter, Response
from fastapi import Request as Connection
from pydantic import BaseModel, Field
from pydantic_core import to_json

from ambilm.model.encoding import clean, finisher
from ambilm.serving.failures import Refusal
from ambilm.serving.schemas import Request, Text, TokenId, Usage
from ambilm.serving.service import Served, Service
from ambilm.serving.vectors import VectorJob

router = APIRouter()
Tokens = Annotated[list[TokenId], Field(min_length=1)]


class EmbeddingRequest(Request):
    """OpenAI's request. Token arrays hold ids of the model's own tokenizer."""

    input: Text | Tokens | Annotated[list[Text], Field(min_length=1)] | Annotated[list[Tokens], Field(min_length=1)]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(strict=True, ge=1)] | None = None
    user: str | None = None

    def texts(self, service: Service) -> list[str]:
        """The inputs as texts.

        Raises:
            Refusal: 400 for too many of them, or an id that the vocabulary has not.
        """
        items = [self.input] if isinstance(self.input, str) or isinstance(self.input[0], int) else self.input
        if len(items) > service.limits.inputs:
            reason = f"{len(items):,} inputs are more than {service.limits.inputs:,}: send them in parts."
            raise Refusal(400, reason, param="input")
        decode = service.model.tokenizer.decode
        return [item if isinstance(item, str) else str(decode(service.check_tokens(item))) for item in items]  # type: ignore[arg-type]


class Embedding(BaseModel):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingList(BaseModel):
    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: Usage


@router.post("/v1/embeddings", response_model=EmbeddingList)
async def embeddings(request: EmbeddingRequest, service: Served, connection: Connection) -> Response:
    """One unit vector an input; ``dimensions`` keeps the first so many, then scales to length 1 again."""
    service.check_name(request.model)
    if request.dimensions is not None and request.dimensions > service.dimension:
        reason = f"dimensions={request.dimensions} is more than this model's {service.dimension}."
        raise Refusal(400, reason, param="dimensions")
    texts = request.texts(service)
    counts = await asyncio.to_thread(token_counts, service, texts)
    job = VectorJob(texts, [service.tokens_with_prompt(count) for count in counts])
    found = await service.result("embeddings", job, connection)
    vectors = finisher(True, request.dimensions, "float32")(np.stack(found))
    used = sum(counts)
    data = [
        Embedding(index=number, embedding=written(vector, request.encoding_format))
        for number, vector in enumerate(vectors)
    ]
    answer = EmbeddingList(data=data, model=service.name, usage=Usage(prompt_tokens=used, total_tokens=used))
    return Response(to_json(answer), media_type="application/json")


def token_counts(service: Service, texts: list[str]) -> list[int]:
    """Tokens of each text, without what is put around it."""
    rows = service.model.tokenizer([clean(text) for text in texts], add_special_tokens=False)["input_ids"]
    return [len(row) for row in rows]  # type: ignore[arg-type, union-attr]


def written(vector: np.ndarray, encoding: Literal["float", "base64"]) -> list[float] | str:
    """A vector (dimension,) as numbers, or any array as its little-endian float32 bytes in base64."""
    if encoding == "float":
        return [float(value) for value in vector]
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
