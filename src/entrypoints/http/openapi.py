"""What OpenAPI says of the routes whose bodies are read by hand and not by the framework."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from litestar.openapi.spec import (
    Components,
    Example,
    OpenAPIMediaType,
    OpenAPIResponse,
    Operation,
    RequestBody,
    Schema,
    SecurityRequirement,
    SecurityScheme,
)
from litestar.openapi.spec.enums import OpenAPIFormat, OpenAPIType

_STRING: Final = Schema(type=OpenAPIType.STRING)
_UUID: Final = Schema(type=OpenAPIType.STRING, format=OpenAPIFormat.UUID)
_BOOLEAN: Final = Schema(type=OpenAPIType.BOOLEAN)
_OBJECT: Final = Schema(type=OpenAPIType.OBJECT, additional_properties=True)


def _nullable(kind: OpenAPIType, description: str | None = None) -> Schema:
    return Schema(type=[kind, OpenAPIType.NULL], description=description)


def _count(description: str) -> Schema:
    return Schema(type=OpenAPIType.INTEGER, minimum=0, description=description)


def _list_of(items: Schema, description: str | None = None) -> Schema:
    return Schema(type=OpenAPIType.ARRAY, items=items, description=description)


_TOOL_CALL: Final = Schema(
    type=OpenAPIType.OBJECT,
    required=["name", "arguments"],
    properties={"id": _nullable(OpenAPIType.STRING), "name": _STRING, "arguments": _OBJECT},
)

_REQUEST: Final = Schema(
    type=OpenAPIType.OBJECT,
    title="TurnRequest",
    required=["projectId", "messages"],
    properties={
        "projectId": _UUID,
        "agentId": Schema(
            type=[OpenAPIType.STRING, OpenAPIType.NULL],
            max_length=200,
            description="The agent whose step this is; null or an empty string is none.",
        ),
        "catalogoCompleto": _nullable(OpenAPIType.BOOLEAN, "Whether the model must see the whole catalogue."),
        "messages": _list_of(
            Schema(
                type=OpenAPIType.OBJECT,
                required=["role", "content"],
                properties={
                    "role": Schema(type=OpenAPIType.STRING, enum=["system", "user", "assistant", "tool"]),
                    "content": _nullable(
                        OpenAPIType.STRING, "Null is for assistants only, and reads as empty."
                    ),
                    "toolCalls": Schema(type=[OpenAPIType.ARRAY, OpenAPIType.NULL], items=_TOOL_CALL),
                    "toolCallId": _nullable(OpenAPIType.STRING),
                    "name": _nullable(OpenAPIType.STRING),
                },
            )
        ),
        "tools": Schema(
            type=[OpenAPIType.ARRAY, OpenAPIType.NULL],
            description="The catalogue of this step.",
            items=Schema(
                type=OpenAPIType.OBJECT,
                required=["name"],
                properties={
                    "name": _STRING,
                    "description": _nullable(OpenAPIType.STRING),
                    "parameters": Schema(
                        type=[OpenAPIType.OBJECT, OpenAPIType.NULL], additional_properties=True
                    ),
                },
            ),
        ),
    },
)

_ANSWER_PROPERTIES: Final[dict[str, Schema]] = {
    "message": Schema(
        type=OpenAPIType.OBJECT,
        required=["role", "content", "toolCalls"],
        properties={
            "role": Schema(type=OpenAPIType.STRING, enum=["assistant"]),
            "content": _STRING,
            "toolCalls": _list_of(_TOOL_CALL),
        },
    ),
    "usage": Schema(
        type=OpenAPIType.OBJECT,
        required=["inputTokens", "outputTokens", "costMicros", "estimated"],
        properties={
            "inputTokens": _count("Tokens of the prompt."),
            "outputTokens": _count("Tokens of the answer."),
            "costMicros": _count("Micro-USD; 1 USD is 1,000,000."),
            "estimated": _BOOLEAN,
        },
    ),
    "error": _nullable(
        OpenAPIType.STRING, "A sentence in Portuguese when the turn failed; the status is 200 all the same."
    ),
    "modelName": _nullable(OpenAPIType.STRING, "Null only when no model was resolved."),
    "turnId": _UUID,
    "truncated": Schema(type=OpenAPIType.BOOLEAN, description="Present and true when the answer was cut."),
    "errorCode": Schema(type=OpenAPIType.STRING, description="For machines; absent without an error."),
    "errorOrigin": Schema(type=OpenAPIType.STRING, enum=["infra", "modelo", "politica", "codigo"]),
    "retryAfterMs": _count("The wait the provider named."),
}
_ANSWER_REQUIRED: Final = ["message", "usage", "error", "modelName", "turnId"]

_REQUEST_EXAMPLE: Final = {
    "projectId": "0198c0de-0000-7000-8000-000000000002",
    "agentId": "dev-api",
    "messages": [
        {"role": "system", "content": "Você edita um repositório."},
        {"role": "user", "content": "Leia a.ts e diga o que ela exporta."},
    ],
    "tools": [
        {
            "name": "read_file",
            "description": "Lê um arquivo do repositório.",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}},
                "required": ["path"],
            },
        }
    ],
}
_ANSWER_EXAMPLE: Final[dict[str, Any]] = {
    "message": {
        "role": "assistant",
        "content": "",
        "toolCalls": [{"id": "call_1", "name": "read_file", "arguments": {"path": "a.ts"}}],
    },
    "usage": {"inputTokens": 212, "outputTokens": 18, "costMicros": 114, "estimated": False},
    "error": None,
    "modelName": "openai/gpt-4.1-mini",
    "turnId": "0198c0de-0000-7000-8000-000000000003",
}
_FAILED_EXAMPLE: Final[dict[str, Any]] = {
    "message": {"role": "assistant", "content": "", "toolCalls": []},
    "usage": {"inputTokens": 0, "outputTokens": 0, "costMicros": 0, "estimated": True},
    "error": "O orçamento do projeto se esgotou; aumente o limite para continuar.",
    "errorCode": "budget_exhausted",
    "errorOrigin": "politica",
    "modelName": "openai/gpt-4.1-mini",
    "turnId": "0198c0de-0000-7000-8000-000000000004",
}
_FRAMES_EXAMPLE: Final = (
    'data: {"type":"delta","text":"Vou ler."}\n\n'
    ": \n\n"
    'data: {"type":"final","message":{"role":"assistant","content":"Vou ler.","toolCalls":[]},'
    '"usage":{"inputTokens":212,"outputTokens":4,"costMicros":92,"estimated":false},"error":null,'
    '"modelName":"openai/gpt-4.1-mini","turnId":"0198c0de-0000-7000-8000-000000000003"}\n\n'
)

_PROBLEM: Final = Schema(
    type=OpenAPIType.OBJECT,
    title="Problem",
    description="RFC 9457.",
    required=["type", "title", "status", "detail"],
    properties={
        "type": _STRING,
        "title": _STRING,
        "status": Schema(type=OpenAPIType.INTEGER),
        "detail": Schema(type=OpenAPIType.STRING, description="What happened, and what to do."),
    },
)
_REFUSALS: Final = {
    "400": "The body does not decode: which field, and why.",
    "403": "The service token is missing or wrong.",
    "404": "There is no such session in that project.",
    "413": "The body is over 32 MiB.",
    "503": "Draining, or the turn's context cannot be read. `Retry-After` says when to come back.",
}


def _refusals(descriptions: Mapping[str, str] = _REFUSALS) -> dict[str, OpenAPIResponse]:
    return {
        status: OpenAPIResponse(
            description=description,
            content={"application/problem+json": OpenAPIMediaType(schema=_PROBLEM)},
        )
        for status, description in descriptions.items()
    }


def _request_body() -> RequestBody:
    return RequestBody(
        required=True,
        content={
            "application/json": OpenAPIMediaType(
                schema=_REQUEST,
                examples={"step": Example(summary="A step with one tool", value=_REQUEST_EXAMPLE)},
            )
        },
    )


SECURITY: Final = Components(
    security_schemes={
        "serviceToken": SecurityScheme(
            type="apiKey",
            name="X-Brabo-Service-Token",
            security_scheme_in="header",
            description="The secret that engines share with this api.",
        ),
        "userToken": SecurityScheme(
            type="http",
            scheme="bearer",
            bearer_format="JWT",
            description="A user's token, signed with Ed25519. Roles are read from the database, never from it.",
        ),
    }
)
_BY_ENGINES: Final[list[SecurityRequirement]] = [{"serviceToken": []}]
_BY_USERS: Final[list[SecurityRequirement]] = [{"userToken": []}]


@dataclass
class TurnOperation(Operation):
    """`llm-turn`."""

    def __post_init__(self) -> None:
        """Fill in what the framework cannot see."""
        self.security = _BY_ENGINES
        self.request_body = _request_body()
        self.responses = {
            "200": OpenAPIResponse(
                description="The turn's answer, failed or not.",
                content={
                    "application/json": OpenAPIMediaType(
                        schema=Schema(
                            type=OpenAPIType.OBJECT,
                            title="TurnAnswer",
                            required=_ANSWER_REQUIRED,
                            properties=dict(_ANSWER_PROPERTIES),
                        ),
                        examples={
                            "call": Example(summary="The model calls a tool", value=_ANSWER_EXAMPLE),
                            "failure": Example(summary="The budget is spent", value=_FAILED_EXAMPLE),
                        },
                    )
                },
            ),
            **_refusals(),
        }


@dataclass
class TurnStreamOperation(Operation):
    """`llm-turn-stream`."""

    def __post_init__(self) -> None:
        """Fill in what the framework cannot see."""
        self.security = _BY_ENGINES
        self.request_body = _request_body()
        self.responses = {
            "200": OpenAPIResponse(
                description=(
                    "Frames `data: <one line of JSON>` and two LF: `delta` with a piece of `text`, and last `final` "
                    "with every key of the JSON route's answer. Lines that start with a colon are comments."
                ),
                content={
                    "text/event-stream": OpenAPIMediaType(
                        schema=_STRING,
                        examples={"frames": Example(summary="A short answer", value=_FRAMES_EXAMPLE)},
                    )
                },
            ),
            **_refusals(),
        }


_NO_MEMBER: Final = "or no member, whether the workspace exists or not."
_OWNERS_REFUSALS: Final = {
    "401": "The user's token is missing, wrong or expired, or its user is not there any more.",
    "503": "The database cannot be reached. `Retry-After` says when to come back.",
}
_WORKSPACE: Final = Schema(
    type=OpenAPIType.OBJECT,
    title="WorkspaceToolRouter",
    required=["id", "name", "slug", "toolRouterEnabled"],
    properties={"id": _UUID, "name": _STRING, "slug": _STRING, "toolRouterEnabled": _BOOLEAN},
)
_WORKSPACE_EXAMPLE: Final = {
    "id": "0198c0de-0000-7000-8000-000000000001",
    "name": "Main",
    "slug": "main",
    "toolRouterEnabled": False,
}


def _workspace_response() -> OpenAPIResponse:
    return OpenAPIResponse(
        description="The workspace, and whether its tool router is on.",
        content={
            "application/json": OpenAPIMediaType(
                schema=_WORKSPACE, examples={"off": Example(summary="Off", value=_WORKSPACE_EXAMPLE)}
            )
        },
    )


@dataclass
class ReadToolRouterOperation(Operation):
    """`GET /workspaces/{id}/tool-router`."""

    def __post_init__(self) -> None:
        """Fill in what the framework cannot see."""
        self.security = _BY_USERS
        self.responses = {
            "200": _workspace_response(),
            **_refusals({**_OWNERS_REFUSALS, "403": f"The user has no role in the workspace, {_NO_MEMBER}"}),
        }


@dataclass
class SwitchToolRouterOperation(Operation):
    """`PUT /workspaces/{id}/tool-router`."""

    def __post_init__(self) -> None:
        """Fill in what the framework cannot see."""
        self.security = _BY_USERS
        self.request_body = RequestBody(
            required=True,
            content={
                "application/json": OpenAPIMediaType(
                    schema=Schema(
                        type=OpenAPIType.OBJECT,
                        title="ToolRouterSwitch",
                        required=["enabled"],
                        properties={"enabled": _BOOLEAN},
                    ),
                    examples={"off": Example(summary="Switch it off", value={"enabled": False})},
                )
            },
        )
        self.responses = {
            "200": _workspace_response(),
            **_refusals(
                {
                    **_OWNERS_REFUSALS,
                    "400": "The body does not decode: which field, and why.",
                    "403": f"The user is no owner of the workspace, {_NO_MEMBER}",
                    "413": "The body is over 64 KiB.",
                }
            ),
        }


@dataclass
class JwksOperation(Operation):
    """`GET /.well-known/jwks.json`."""

    def __post_init__(self) -> None:
        """Fill in what the framework cannot see."""
        members = ["crv", "kty", "x", "kid", "alg", "use"]
        key = Schema(
            type=OpenAPIType.OBJECT, required=members, properties={**dict.fromkeys(members, _STRING)}
        )
        example = {
            "crv": "Ed25519",
            "kty": "OKP",
            "x": "zmua_C06iJ33SkXxiG-zGj6Nrd_M3C3yBJkJ7v0wwlg",
            "kid": "HRUqYTEtPCVEnSj5y3T_HVM21p13jnAcfKdqy1tyrIY",
            "alg": "EdDSA",
            "use": "sig",
        }
        self.responses = {
            "200": OpenAPIResponse(
                description="The key that signs, and while secrets are rotated the one before it.",
                content={
                    "application/json": OpenAPIMediaType(
                        schema=Schema(
                            type=OpenAPIType.OBJECT,
                            title="JwkSet",
                            required=["keys"],
                            properties={"keys": _list_of(key)},
                        ),
                        examples={"one": Example(summary="One key", value={"keys": [example]})},
                    )
                },
            )
        }
