"""Errors in the shape that OpenAI's clients read: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from ambilm.errors import UserError

# The status says whose mistake it was; the clients pick their exception by it.
TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class ErrorBody(BaseModel):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorResponse(BaseModel):
    error: ErrorBody


class Refusal(Exception):
    """A request that is answered with an error: one sentence that says what is wrong and what to do."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.headers = status, message, param, code, headers

    def body(self) -> dict[str, Any]:
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        error = ErrorBody(message=self.message, type=kind, param=self.param, code=self.code)
        return ErrorResponse(error=error).model_dump()

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status, dict(self.headers or {}))


class HungUp(Exception):
    """The client no longer waits for its answer."""


def answer_errors(app: FastAPI) -> None:
    """Turns every exception of a route into an answer of that shape."""

    def refusal(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, Refusal)
        return error.response()

    def hung_up(*_: object) -> Response:
        return Response(status_code=499)  # nginx's number; nobody reads it

    def user_error(_: Request, error: Exception) -> JSONResponse:
        return Refusal(400, str(error)).response()

    def invalid(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return Refusal(400, *_sentence(error.errors())).response()

    def http(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        return Refusal(error.status_code, str(error.detail), headers=error.headers).response()

    def internal(_: Request, error: Exception) -> JSONResponse:
        return Refusal(500, f"Internal error: {type(error).__name__}. The server's log holds the traceback.").response()

    app.add_exception_handler(Refusal, refusal)
    app.add_exception_handler(HungUp, hung_up)
    app.add_exception_handler(UserError, user_error)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, internal)


def _sentence(errors: Sequence[Mapping[str, Any]]) -> tuple[str]:
    """What is wrong with the first field that is wrong; the alternatives of a union are joined."""
    places = [tuple(str(part) for part in error["loc"] if part != "body") for error in errors]
    field = places[0][0] if places[0] and errors[0]["type"] != "json_invalid" else ""
    reasons = dict.fromkeys(
        str(error["msg"]) for error, place in zip(errors, places, strict=True) if not field or place[:1] == (field,)
    )
    return (f"{field}: {', or '.join(reasons)}" if field else f"The body is no valid JSON: {next(iter(reasons))}",)
