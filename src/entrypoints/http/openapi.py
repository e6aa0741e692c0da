"""What OpenAPI says of the routes whose bodies are read by hand and not by the framework."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
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

from domain.budget import LIMIT_MICROS_MAX, THRESHOLDS_PERCENT, BudgetPolicy
from domain.failure import FailureCode
from domain.routing import DETAIL_CHARACTERS, FallbackOrigin, FallbackReason

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

_ROUTING_PROPERTIES: Final[dict[str, Schema]] = {
    "modelo": Schema(type=OpenAPIType.STRING, description="The decision model that is asked."),
    "ofertadas": _count("How many tools were offered."),
    "menuAntes": _list_of(_STRING, "Their names."),
    "menuDepois": _list_of(_STRING, "The names of those that the chat model was given; never empty."),
    "escolha": _nullable(
        OpenAPIType.STRING, "The tool chosen, or `responder_sem_ferramenta`; null in a fallback."
    ),
    "confianca": _nullable(
        OpenAPIType.NUMBER, "As the decision model says; recorded, and nothing depends on it."
    ),
    "segunda": Schema(
        type=[OpenAPIType.OBJECT, OpenAPIType.NULL],
        description="The likeliest option but the choice.",
        required=["opcao", "probabilidade"],
        properties={"opcao": _STRING, "probabilidade": Schema(type=OpenAPIType.NUMBER)},
    ),
    "anterior": _nullable(OpenAPIType.STRING, "The tool that the run called last, offered or not."),
    "aplicado": Schema(
        type=OpenAPIType.BOOLEAN, description="Whether the menu came out smaller than the catalogue."
    ),
    "motivoDaQueda": Schema(
        type=[OpenAPIType.STRING, OpenAPIType.NULL],
        enum=[*FallbackReason, None],
        description="Why the step has its whole catalogue although the router was to be asked.",
    ),
    "origemDaQueda": Schema(
        type=[OpenAPIType.STRING, OpenAPIType.NULL],
        enum=[*FallbackOrigin, None],
        description="Whose fault that is.",
    ),
    "detalheDaQueda": Schema(
        type=[OpenAPIType.STRING, OpenAPIType.NULL],
        max_length=DETAIL_CHARACTERS,
        description="`circuit_open`: not asked, since the last five calls with this key failed.",
    ),
    "latenciaMs": _count("Of the decision; 0 when nothing was sent."),
    "custoMicros": _count(
        "Of the decision, in micro-USD, beside `usage.costMicros`; 0 when no cost was named."
    ),
    "gastoNaoRegistrado": Schema(
        type=OpenAPIType.BOOLEAN, description="The decision cost something, and that is not in the ledger."
    ),
    "turnId": Schema(
        type=OpenAPIType.STRING, format=OpenAPIFormat.UUID, description="The same as the answer's."
    ),
}

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
    "toolRouting": Schema(
        type=OpenAPIType.OBJECT,
        title="ToolRouting",
        description="What became of the step's menu; absent when the tool router had no part in it.",
        required=list(_ROUTING_PROPERTIES),
        properties=dict(_ROUTING_PROPERTIES),
    ),
    "truncated": Schema(type=OpenAPIType.BOOLEAN, description="Present and true when the answer was cut."),
    "errorCode": Schema(
        type=OpenAPIType.STRING,
        enum=[code.value for code in FailureCode],
        description="For machines; absent without an error.",
    ),
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
        {
            "role": "assistant",
            "content": "",
            "toolCalls": [{"id": "call_0", "name": "list_files", "arguments": {}}],
        },
        {"role": "tool", "content": "a.ts", "toolCallId": "call_0", "name": "list_files"},
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
        },
        {"name": "list_files", "description": "Lista os arquivos do repositório."},
        {"name": "run_tests", "description": "Executa os testes."},
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
    "toolRouting": {
        "modelo": "typesafe/jev-1.13",
        "ofertadas": 3,
        "menuAntes": ["read_file", "list_files", "run_tests"],
        "menuDepois": ["read_file", "list_files"],
        "escolha": "read_file",
        "confianca": 0.94,
        "segunda": {"opcao": "list_files", "probabilidade": 0.04},
        "anterior": "list_files",
        "aplicado": True,
        "motivoDaQueda": None,
        "origemDaQueda": None,
        "detalheDaQueda": None,
        "latenciaMs": 317,
        "custoMicros": 27,
        "gastoNaoRegistrado": False,
        "turnId": "0198c0de-0000-7000-8000-000000000003",
    },
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
    'data: {"type":"tool_routing_started"}\n\n'
    'data: {"type":"delta","text":"Vou ler."}\n\n'
    ": \n\n"
    'data: {"type":"final","message":{"role":"assistant","content":"Vou ler.","toolCalls":[]},'
    '"usage":{"inputTokens":212,"outputTokens":4,"costMicros":92,"estimated":false},"error":null,'
    '"modelName":"openai/gpt-4.1-mini","turnId":"0198c0de-0000-7000-8000-000000000003","toolRouting":'
    '{"modelo":"typesafe/jev-1.13","ofertadas":3,"menuAntes":["read_file","list_files","run_tests"],"menuDepois":'
    '["read_file","list_files","run_tests"],"escolha":"responder_sem_ferramenta","confianca":0.81,"segunda":null,'
    '"anterior":"list_files","aplicado":false,"motivoDaQueda":null,"origemDaQueda":null,"detalheDaQueda":null,'
    '"latenciaMs":317,"custoMicros":27,"gastoNaoRegistrado":false,"turnId":"0198c0de-0000-7000-8000-000000000003"}}'
    "\n\n"
)


def _answer_example(summary: str, answer: Mapping[str, Any]) -> Example:
    """Encoded here: the framework leaves out what is null."""
    return Example(summary=summary, value=msgspec.Raw(msgspec.json.encode(answer)))


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
_LONG_HEAD: Final = "The head of the request is over 64 KiB. The connection is closed."
_REFUSALS: Final = {
    "400": "The body does not decode: which field, and why.",
    "403": "The service token is missing or wrong.",
    "404": "There is no such session in that project.",
    "413": "The body is over 32 MiB.",
    "431": _LONG_HEAD,
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
                examples={"step": Example(summary="A step with three tools", value=_REQUEST_EXAMPLE)},
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
                            "call": _answer_example("The model calls a tool", _ANSWER_EXAMPLE),
                            "failure": _answer_example("The budget is spent", _FAILED_EXAMPLE),
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
                    "Frames `data: <one line of JSON>` and two LF: `tool_routing_started` before all others where the "
                    "tool router is about to be asked, `delta` with a piece of `text`, and last `final` with every "
                    "key of the JSON route's answer. Lines that start with a colon are comments."
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
    "431": _LONG_HEAD,
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


_BAD_BODY: Final = "The body does not decode: which field, and why."
_LONG_BODY: Final = "The body is over 64 KiB."
_NO_MAINTAINER: Final = "The user is no maintainer of the project, whether it exists or not."
_NO_DEVELOPER: Final = "The user is no developer in the project, whether it exists or not."
_NO_BUDGET: Final = "There is no budget: nothing limits or counts this spend."
_NO_SESSION: Final = "There is no such session in the project."
_LIMIT_MICROS: Final = Schema(
    type=OpenAPIType.INTEGER,
    minimum=0,
    maximum=LIMIT_MICROS_MAX,
    description="Micro-USD; 1 USD is 1,000,000. 0 is no limit.",
)
_LIMIT_USD: Final = Schema(
    type=OpenAPIType.NUMBER,
    minimum=0,
    maximum=LIMIT_MICROS_MAX // 1_000_000,
    description="The same in dollars, instead of it: read as the decimal it is, and rounded half up.",
)
_POLICY: Final = Schema(
    type=OpenAPIType.STRING,
    enum=list(BudgetPolicy),
    description="`block` refuses turns from the whole of the limit on, `allow` never does.",
)
_STRICT: Final = Schema(
    type=OpenAPIType.BOOLEAN,
    description="Before each turn the most that it can cost is held, and a turn that does not fit is refused. Needs a "
    "limit and the policy `block`.",
)
_BUDGET: Final = Schema(
    type=OpenAPIType.OBJECT,
    title="Budget",
    required=[
        "limitMicros",
        "spentMicros",
        "policy",
        "lastThresholdNotified",
        "strict",
        "heldMicros",
        "excess",
    ],
    properties={
        "limitMicros": _LIMIT_MICROS,
        "spentMicros": _count("Since the budget was made."),
        "policy": _POLICY,
        "lastThresholdNotified": Schema(
            type=OpenAPIType.INTEGER,
            enum=[0, *THRESHOLDS_PERCENT],
            description="The thresholds up to this percentage were announced. A raised limit arms again, and "
            "lowers this to, what is still crossed.",
        ),
        "strict": _STRICT,
        "heldMicros": _count(
            "Held for turns under way, and for those whose cost is not known for certain yet."
        ),
        "excess": Schema(
            type=OpenAPIType.OBJECT,
            description="What turns came to beyond what was held for them. It counts as spent all the same.",
            required=["turns", "micros"],
            properties={"turns": _count("Such turns."), "micros": _count("Of all of them together.")},
        ),
    },
)
_AREA: Final = Schema(
    type=OpenAPIType.OBJECT,
    title="AgentArea",
    required=["key", "limitMicros", "spentMicros"],
    properties={
        "key": _STRING,
        "limitMicros": _nullable(OpenAPIType.INTEGER, "Micro-USD; null is no ceiling."),
        "spentMicros": _count("Counted with a ceiling or without."),
    },
)
_BUDGET_EXAMPLE: Final = {
    "limitMicros": 2_500_000,
    "spentMicros": 1_900_000,
    "policy": "block",
    "lastThresholdNotified": 70,
    "strict": True,
    "heldMicros": 120_000,
    "excess": {"turns": 0, "micros": 0},
}
_AREA_EXAMPLE: Final = {"key": "qa", "limitMicros": 2_500_000, "spentMicros": 420_000}
_UNLIMITED_AREA_EXAMPLE: Final = {"key": "dev", "limitMicros": None, "spentMicros": 1_480_000}


def _found(description: str, schema: Schema, summary: str, example: Mapping[str, Any]) -> OpenAPIResponse:
    return OpenAPIResponse(
        description=description,
        content={
            "application/json": OpenAPIMediaType(
                schema=schema, examples={"usual": _answer_example(summary, example)}
            )
        },
    )


def _limit_body(properties: Mapping[str, Schema], examples: Mapping[str, Mapping[str, Any]]) -> RequestBody:
    return RequestBody(
        required=True,
        content={
            "application/json": OpenAPIMediaType(
                schema=Schema(
                    type=OpenAPIType.OBJECT,
                    one_of=[Schema(required=["limitUsd"]), Schema(required=["limitMicros"])],
                    properties=dict(properties),
                ),
                examples={
                    f"example{at}": _answer_example(summary, body)
                    for at, (summary, body) in enumerate(examples.items(), 1)
                },
            )
        },
    )


def _budget_response() -> OpenAPIResponse:
    return _found("The budget.", _BUDGET, "Three quarters are spent", _BUDGET_EXAMPLE)


def _budget_body() -> RequestBody:
    policy = Schema(
        type=_POLICY.type, enum=_POLICY.enum, description=f"{_POLICY.description} Absent: as it is."
    )
    strict = Schema(type=_STRICT.type, description=f"{_STRICT.description} Absent: as it is.")
    return _limit_body(
        {"limitUsd": _LIMIT_USD, "limitMicros": _LIMIT_MICROS, "policy": policy, "strict": strict},
        {
            "Dollars": {"limitUsd": 2.5, "policy": "block"},
            "Micro-USD, strict": {"limitMicros": 2_500_000, "strict": True},
        },
    )


@dataclass
class ReadProjectBudgetOperation(Operation):
    """`GET /projects/{id}/budget`."""

    def __post_init__(self) -> None:
        """Fill in what the framework cannot see."""
        self.security = _BY_USERS
        refusals = {**_OWNERS_REFUSALS, "403": _NO_MAINTAINER, "404": _NO_BUDGET}
        self.responses = {"200": _budget_response(), **_refusals(refusals)}


@dataclass
class SetProjectBudgetOperation(Operation):
    """`PUT /projects/{id}/budget`."""

    def __post_init__(self) -> None:
        """Fill in what the framework cannot see."""
        self.security = _BY_USERS
        self.request_body = _budget_body()
        refusals = {**_OWNERS_REFUSALS, "400": _BAD_BODY, "403": _NO_MAINTAINER, "413": _LONG_BODY}
        self.responses = {"200": _budget_response(), **_refusals(refusals)}


@dataclass
class ReadSessionBudgetOperation(Operation):
    """`GET /projects/{id}/sessions/{sid}/budget`."""

    def __post_init__(self) -> None:
        """Fill in what the framework cannot see."""
        self.security = _BY_USERS
        refusals = {**_OWNERS_REFUSALS, "403": _NO_DEVELOPER, "404": f"{_NO_SESSION} Or: {_NO_BUDGET}"}
        self.responses = {"200": _budget_response(), **_refusals(refusals)}


@dataclass
class SetSessionBudgetOperation(Operation):
    """`PUT /projects/{id}/sessions/{sid}/budget`."""

    def __post_init__(self) -> None:
        """Fill in what the framework cannot see."""
        self.security = _BY_USERS
        self.request_body = _budget_body()
        refusals = {
            **_OWNERS_REFUSALS,
            "400": _BAD_BODY,
            "403": _NO_DEVELOPER,
            "404": _NO_SESSION,
            "413": _LONG_BODY,
        }
        self.responses = {"200": _budget_response(), **_refusals(refusals)}


@dataclass
class ReadAgentAreasOperation(Operation):
    """`GET /projects/{id}/agent-areas`."""

    def __post_init__(self) -> None:
        """Fill in what the framework cannot see."""
        self.security = _BY_USERS
        areas = Schema(
            type=OpenAPIType.OBJECT,
            title="AgentAreas",
            required=["items"],
            properties={"items": _list_of(_AREA, "By key.")},
        )
        example = {"items": [_UNLIMITED_AREA_EXAMPLE, _AREA_EXAMPLE]}
        self.responses = {
            "200": _found("The project's areas.", areas, "One of two has a ceiling", example),
            **_refusals({**_OWNERS_REFUSALS, "403": _NO_MAINTAINER}),
        }


@dataclass
class LimitAgentAreaOperation(Operation):
    """`PUT /projects/{id}/agent-areas/{key}/budget`."""

    def __post_init__(self) -> None:
        """Fill in what the framework cannot see."""
        self.security = _BY_USERS
        integer_or_null = [OpenAPIType.INTEGER, OpenAPIType.NULL]
        number_or_null = [OpenAPIType.NUMBER, OpenAPIType.NULL]
        self.request_body = _limit_body(
            {
                "limitUsd": Schema(type=number_or_null, minimum=0, maximum=_LIMIT_USD.maximum),
                "limitMicros": Schema(type=integer_or_null, minimum=0, maximum=_LIMIT_MICROS.maximum),
            },
            {"Dollars": {"limitUsd": 2.5}, "No ceiling": {"limitUsd": None}},
        )
        refusals = {
            **_OWNERS_REFUSALS,
            "400": _BAD_BODY,
            "403": _NO_MAINTAINER,
            "404": "There is no such area in the project.",
            "413": _LONG_BODY,
        }
        self.responses = {
            "200": _found("The area.", _AREA, "A ceiling", _AREA_EXAMPLE),
            **_refusals(refusals),
        }
