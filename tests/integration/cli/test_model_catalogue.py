"""The providers' lists, over real sockets."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from adapters.openai_compatible.model_catalogue import OpenAICompatibleCatalogue
from adapters.openai_compatible.profiles import provider_table
from application.ports.model_catalogue import CatalogueUnavailable
from domain.provider import Provider
from domain.usage import Prices
from tests.support.recordings import RECORDINGS

Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def provider(answer: Answer) -> Iterator[str]:
    """A server that answers each GET so; its root."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever, args=[0.01])
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            serving.join()


def answering(body: bytes, status: int = 200, paths: list[str] | None = None) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        if paths is not None:
            paths.append(handler.path)
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def catalogue(root: str, name: Provider = Provider.OPENROUTER) -> OpenAICompatibleCatalogue:
    return OpenAICompatibleCatalogue(provider_table({name: root}, "http://127.0.0.1:3000"), patience_s=0.5)


def entry(**fields: object) -> bytes:
    return json.dumps({"data": [{"id": "m", **fields}]}).encode()


@pytest.mark.parametrize(
    ("name", "path"),
    [(Provider.OPENROUTER, "/v1/models"), (Provider.OLLAMA, "/v1/models"), (Provider.TOGETHER, "/models")],
)
def test_the_list_lies_beside_the_chat(name: Provider, path: str) -> None:
    paths: list[str] = []
    with provider(answering(b'{"data": []}', paths=paths)) as root:
        assert catalogue(root, name).offered(name) == {}
    assert paths == [path]


def test_an_entry_is_read_whole() -> None:
    body = entry(
        name="A model",
        context_length=200_000,
        pricing={"prompt": "0.00000015", "completion": "0.0000006"},
        supported_parameters=["tools", "stop"],
    )
    with provider(answering(body)) as root:
        offered = catalogue(root).offered(Provider.OPENROUTER)

    assert offered is not None
    [model] = offered.values()
    assert (model.display_name, model.context_window, model.supports_tool_calling) == (
        "A model",
        200_000,
        True,
    )
    assert model.prices == Prices(150_000, 600_000)


@pytest.mark.parametrize(
    "pricing",
    [
        None,
        {},
        [],
        {"prompt": "-1", "completion": "-1"},
        {"prompt": "1"},
        {"prompt": "NaN", "completion": "1"},
        {"prompt": "1e999999", "completion": "1"},
        {"prompt": "free", "completion": "1"},
        {"prompt": 0.1, "completion": 0.2},
    ],
)
def test_prices_that_are_no_prices_are_none(pricing: object) -> None:
    with provider(answering(entry(pricing=pricing, context_length=None, supported_parameters=None))) as root:
        offered = catalogue(root).offered(Provider.OPENROUTER)

    assert offered is not None
    assert offered["m"].prices is None
    assert offered["m"].context_window is None
    assert offered["m"].supports_tool_calling is None


def test_a_bare_list_is_a_list_too() -> None:
    with provider(answering(b'[{"id": "m"}, {"id": 7}, "x"]')) as root:
        assert list(catalogue(root, Provider.TOGETHER).offered(Provider.TOGETHER) or ()) == ["m"]


@pytest.mark.parametrize("status", [401, 403])
def test_a_list_for_holders_of_a_key_is_none(status: int) -> None:
    with provider(answering(b"{}", status)) as root:
        assert catalogue(root).offered(Provider.OPENROUTER) is None


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"<html>", 200, "no JSON"),
        (b"[" * 100_000, 200, "no JSON"),
        (b'{"data": {}}', 200, "without a list"),
        (b"7", 200, "without a list"),
        (b"{}", 302, "status 302"),
        (b"{}", 503, "status 503"),
    ],
)
def test_anything_else_is_said(body: bytes, status: int, said: str) -> None:
    with provider(answering(body, status)) as root, pytest.raises(CatalogueUnavailable, match=said) as failed:
        catalogue(root).offered(Provider.OPENROUTER)
    assert f"{root}/v1/models" in str(failed.value)


def test_nobody_there_is_said() -> None:
    with pytest.raises(CatalogueUnavailable, match="cannot be reached"):
        catalogue("http://127.0.0.1:1").offered(Provider.OPENROUTER)


def test_an_answer_that_drips_ends_with_the_patience() -> None:
    left = threading.Event()

    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while not left.wait(0.05):
            handler.wfile.write(b" ")

    started_s = time.monotonic()
    with provider(drip) as root:
        try:
            with pytest.raises(CatalogueUnavailable, match="did not answer within"):
                catalogue(root).offered(Provider.OPENROUTER)
        finally:
            left.set()
    assert time.monotonic() - started_s < 3


@pytest.mark.skipif(RECORDINGS.folder is None, reason="the recordings do not lie beside this checkout")
def test_a_recorded_list_is_read() -> None:
    body = RECORDINGS.read_bytes("fixtures/openrouter/models_list_excerpt.json")

    with provider(answering(body)) as root:
        offered = catalogue(root).offered(Provider.OPENROUTER)

    assert offered is not None
    assert {
        name: (model.prices, model.supports_tool_calling, model.context_window)
        for name, model in offered.items()
    } == {
        "anthropic/claude-sonnet-4": (Prices(3_000_000, 15_000_000), True, 1_000_000),
        "openai/gpt-4.1-mini": (Prices(400_000, 1_600_000), True, 1_047_576),
    }
