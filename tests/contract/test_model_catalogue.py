"""What every adapter of the port ModelCatalogue does."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from adapters.in_memory.installation import InMemoryCatalogue
from adapters.openai_compatible.model_catalogue import OpenAICompatibleCatalogue
from adapters.openai_compatible.profiles import provider_table
from application.ports.model_catalogue import CatalogueUnavailable, ModelCatalogue, OfferedModel
from domain.provider import Provider
from domain.usage import Prices

OFFERED = {
    "maker/able": OfferedModel(
        display_name="Able",
        prices=Prices(400_000, 1_600_000),
        context_window=1000,
        max_output_tokens=400,
        supports_tool_calling=True,
    ),
    "maker/plain": OfferedModel(
        display_name="maker/plain",
        prices=None,
        context_window=None,
        max_output_tokens=None,
        supports_tool_calling=None,
    ),
}
LISTED = {
    "data": [
        {
            "id": "maker/able",
            "name": "Able",
            "context_length": 1000,
            "top_provider": {"max_completion_tokens": 400},
            "pricing": {"prompt": "0.0000004", "completion": "0.0000016"},
            "supported_parameters": ["tools"],
        },
        {"id": "maker/plain", "top_provider": {"max_completion_tokens": None}},
    ]
}


@contextmanager
def serving(status: int, body: bytes) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def in_memory() -> Iterator[ModelCatalogue]:
    """OpenRouter has a list, Together shows it to holders of a key, Vultr is out of reach."""
    yield InMemoryCatalogue(lists={Provider.OPENROUTER: OFFERED, Provider.TOGETHER: None})


@contextmanager
def over_http() -> Iterator[ModelCatalogue]:
    """The same."""
    with serving(200, json.dumps(LISTED).encode()) as listing, serving(401, b"{}") as refusing:
        bases = {
            Provider.OPENROUTER: listing,
            Provider.TOGETHER: refusing,
            Provider.VULTR: "http://127.0.0.1:1",
        }
        yield OpenAICompatibleCatalogue(provider_table(bases, "http://127.0.0.1:3000"))


@pytest.fixture(params=[in_memory, over_http], ids=["in_memory", "http"])
def catalogue(request: pytest.FixtureRequest) -> Iterator[ModelCatalogue]:
    with request.param() as made:
        yield made


def test_a_list_is_given_by_name(catalogue: ModelCatalogue) -> None:
    assert catalogue.offered(Provider.OPENROUTER) == OFFERED


def test_a_list_for_holders_of_a_key_is_none(catalogue: ModelCatalogue) -> None:
    assert catalogue.offered(Provider.TOGETHER) is None


def test_a_provider_out_of_reach_is_said(catalogue: ModelCatalogue) -> None:
    with pytest.raises(CatalogueUnavailable, match=r"\S"):
        catalogue.offered(Provider.VULTR)
