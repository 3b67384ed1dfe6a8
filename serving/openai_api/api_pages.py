"""The description of the API in OpenAPI, and a page of it: what can be asked, and how.

Both ask for a key, as the names of the models and of their columns do not belong to everybody. A
browser asks for it as the password of a login. The page is plain HTML without scripts.
"""

import base64
import binascii
import html
import json
import math
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from millrace.serving.openai_api.api_key import ApiKey
from millrace.serving.openai_api.error_response import ApiError
from millrace.serving.openai_api.row_models import RowModel
from millrace.serving.openai_api.row_requests import RowHandler
from millrace.serving.triton.column_front import MOST_ROWS

ERRORS = {"400": "a row or the request is refused", "401": "no key", "429": "too many tokens"}
POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
STYLE = """
body { font: 16px/1.5 sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
pre { background: #f4f4f4; padding: 1rem; overflow: auto }
td, th { padding: .2rem 1rem .2rem 0; text-align: left }
"""


class ApiPages:
    """Answers with the description and the page.

    Args:
        rows: knows the models that answer rows.
        authenticate: returns the key of a request, or refuses it.
    """

    def __init__(self, rows: RowHandler, authenticate: Callable[[Mapping[str, str]], ApiKey]):
        self._rows, self._authenticate = rows, authenticate

    async def description(self, request: Request) -> Response:
        """Answer with the description in OpenAPI 3.1, as JSON."""
        self._authenticate(_with_password(request.headers))
        return JSONResponse(describe_api(await self._rows.list_models()))

    async def page(self, request: Request) -> Response:
        """Answer with the page; a browser asks its user for a key."""
        try:
            self._authenticate(_with_password(request.headers))
        except ApiError as error:
            answer = error.response()
            answer.headers["www-authenticate"] = 'Basic realm="an API key as the password"'
            return answer
        page = render_page(await self._rows.list_models(), str(request.base_url))
        return HTMLResponse(page, headers={"content-security-policy": POLICY})


def _with_password(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return the headers with the password of a login as the key."""
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return headers
    try:
        _, _, password = base64.b64decode(value, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        password = ""
    return {"authorization": f"Bearer {password}"}


def describe_api(models: list[RowModel]) -> dict[str, Any]:
    """Return the description of the API in OpenAPI 3.1."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Millrace", "version": version("millrace")},
        "security": [{"key": []}],
        "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "paths": {f"/v1/models/{model.name}:predict": _path(model) for model in models},
    }


def _path(model: RowModel) -> dict[str, Any]:
    asked = {
        "type": "object",
        "required": ["instances"],
        "additionalProperties": False,
        "properties": {
            "instances": {"type": "array", "items": model.schema, "maxItems": MOST_ROWS},
            "scores": {"anyOf": [{"const": "all"}, {"type": "integer", "minimum": 1}]},
        },
    }
    answers = {
        "type": "object",
        "properties": {
            "model": {"const": model.name},
            "model_version": {"type": "integer"},
            "predictions": {"type": "array", "items": _prediction(model)},
        },
    }
    content = {"application/json": {"schema": asked}}
    good = {"description": f"{model.target} of each row", "content": _json(answers)}
    failures = {status: {"description": words} for status, words in ERRORS.items()}
    return {
        "post": {
            "summary": f"Predict {model.target} with version {model.version} of {model.name}",
            "operationId": f"predict_{model.name}",
            "requestBody": {"required": True, "content": content},
            "responses": {"200": good, **failures},
        }
    }


def _json(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _prediction(model: RowModel) -> dict[str, Any]:
    if not model.labels:
        return {"type": "object", "properties": {"prediction": {"type": "number"}}}
    number = {"type": "number", "minimum": 0, "maximum": 1}
    types = {str: "string", bool: "boolean", int: "integer"}
    label = {"type": types[type(model.labels[0])]}
    scores = {"type": "object", "additionalProperties": number}
    return {
        "type": "object",
        "properties": {"prediction": label, "score": number, "scores": scores},
    }


def render_page(models: list[RowModel], address: str) -> str:
    """Return the page as HTML: a request to each model as `curl` sends it, and its columns."""
    parts = [_section(model, address) for model in models]
    if not parts:
        parts = ["<p>No model with columns is served: promote a version in MLflow.</p>"]
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Millrace API</title>"
        f"<style>{STYLE}</style><h1>Millrace API</h1><p>As OpenAPI: <a href=/openapi.json>"
        f"openapi.json</a>, with a key.</p>{''.join(parts)}</html>"
    )


def _section(model: RowModel, address: str) -> str:
    row = {column["name"]: example_value(column) for column in model.columns}
    body = json.dumps({"instances": [row]}, ensure_ascii=False)
    quoted = body.replace("'", "'\\''")
    curl = (
        f"curl {address}v1/models/{model.name}:predict \\\n"
        f"  -H 'Authorization: Bearer KEY' -H 'Content-Type: application/json' \\\n"
        f"  -d '{quoted}'"
    )
    lines = "".join(
        f"<tr><td>{html.escape(str(name))}<td>{html.escape(_in_words(schema))}"
        for name, schema in model.schema["properties"].items()
    )
    return (
        f"<h2>{html.escape(model.name)}, version {model.version}</h2>"
        f"<p>Predicts {html.escape(model.target)}.</p><pre>{html.escape(curl)}</pre>"
        f"<table><tr><th>column<th>values{lines}</table>{_about_key(model)}"
    )


def _about_key(model: RowModel) -> str:
    if not model.key:
        return ""
    names = ", ".join(f"<code>{html.escape(name)}</code>" for name in model.key)
    return f"<p>A row may have {names} too, by which a label finds its logged answer.</p>"


def example_value(column: Mapping[str, Any]) -> Any:
    """Return a value that a column may have."""
    if column["categories"]:
        return column["categories"][0]
    if column["kind"] == "text":
        return "a text"
    if column["values"] == "bool":
        return True
    low, high = column["min"], column["max"]
    number = low if low is not None else high if high is not None else 1
    value = math.ceil(number) if column["values"] == "int" else float(number)
    return [value] * column["width"] if column["kind"] == "vector" else value


def _in_words(schema: Mapping[str, Any]) -> str:
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    listed = [json.dumps(each, ensure_ascii=False) for each in schema.get("enum", ())]
    return " or ".join(kinds) + (f": {', '.join(listed)}" if listed else "")
