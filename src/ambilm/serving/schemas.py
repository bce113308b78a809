"""What parts of the API share: strict requests, token ids, usage."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

TokenId = Annotated[int, Field(strict=True, ge=0)]
Text = Annotated[str, Field(min_length=1)]


class Request(BaseModel):
    """A body whose unknown fields are refused: a misspelt option must not be ignored."""

    model_config = ConfigDict(extra="forbid")

    model: str


class Usage(BaseModel):
    prompt_tokens: int
    total_tokens: int


class TextUsage(Usage):
    completion_tokens: int

    @classmethod
    def of(cls, prompt: int, completion: int) -> TextUsage:
        return cls(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)
