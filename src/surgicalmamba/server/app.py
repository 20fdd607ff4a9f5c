"""The process: the web application with its routes and page, the model, and the HTTP server around them."""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import TYPE_CHECKING

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from uvicorn.protocols.http.h11_impl import H11Protocol

from surgicalmamba.engines.select import open_engine
from surgicalmamba.errors import CheckpointError, ConfigError
from surgicalmamba.server.api import api, public
from surgicalmamba.server.config import ServeConfig
from surgicalmamba.server.push import push
from surgicalmamba.server.security import Gate, Guard
from surgicalmamba.server.service import Service
from surgicalmamba.server.wire import ENVELOPE_BYTES
from surgicalmamba.version import __version__

if TYPE_CHECKING:
    from surgicalmamba.model.recognizer import AnyRecognizer
    from surgicalmamba.model.surgical_mamba import SurgicalMamba

_PAGE = files("surgicalmamba.server").joinpath("page")
_TYPES = {"css": "text/css", "js": "text/javascript", "html": "text/html", "svg": "image/svg+xml"}


def create_app(service: Service) -> FastAPI:
    """The application around a service. It starts the service and, at its end, stops it."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.hub.attach(asyncio.get_running_loop())
        await asyncio.to_thread(service.start)
        yield
        service.hub.close()
        await asyncio.to_thread(service.stop)

    app = FastAPI(
        title="surgicalmamba",
        version=__version__,
        description="Online surgical phase recognition. Research software, not a medical device.",
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
    )
    app.state.service, app.state.gate = service, Gate(service.config.tokens)
    for router in (public, api, push):
        app.include_router(router)
    for file in _PAGE.iterdir():
        _add_page(app, file.name, file.read_bytes())
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_middleware(Guard, config=service.config, metrics=service.metrics)
    return app


def _add_page(app: FastAPI, name: str, content: bytes) -> None:
    """A file of the page under a fixed address: no part of a request is ever a file name."""
    media_type = _TYPES[name.rsplit(".", 1)[1]]

    def answer() -> Response:
        return Response(content, media_type=media_type)

    app.add_api_route("/" if name == "index.html" else f"/{name}", answer, include_in_schema=False)


async def _invalid(request: Request, error: Exception) -> Response:
    """A request that does not fit its description, in one sentence."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return JSONResponse({"detail": f"{where}: {first['msg']}"}, 422)


def load_model(config: ServeConfig) -> "tuple[AnyRecognizer, str, bool | None]":
    """The model, its name on the page, and, for a demo model, whether it is trained."""
    from surgicalmamba.model.checkpoint import best_of, demo_model_path, load

    if config.model is None:
        try:
            return load(demo_model_path()), "demo", True
        except CheckpointError:
            return untrained_demo(), "untrained demo", False
    source = best_of(config.model)
    parts = str(source).replace("\\", "/").rstrip("/").split("/")
    # The checkpoint of a run is shown with the name of the run.
    name = "/".join(parts[-2:]) if parts[-1] in ("best", "last") else parts[-1]
    return load(source), name, None


def untrained_demo() -> "SurgicalMamba":
    """A small model with the phases of the synthetic procedure and random weights."""
    import torch

    from surgicalmamba.data.synthetic import PHASE_NAMES
    from surgicalmamba.model.surgical_mamba import ModelConfig, SurgicalMamba

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = ModelConfig.preset("tiny", n_phases=len(PHASE_NAMES), phases=PHASE_NAMES)
        return SurgicalMamba(config).eval()


def with_deadline(header_s: float) -> type[H11Protocol]:
    """HTTP that closes a connection which has sent no complete request after `header_s` seconds."""

    class DeadlineProtocol(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._deadline = self.loop.call_later(header_s, self._close_if_silent)

        def _close_if_silent(self) -> None:
            cycle: object = self.cycle  # uvicorn sets it once the headers of a request are complete
            if cycle is None:
                self.transport.close()

        def connection_lost(self, exc: Exception | None) -> None:
            self._deadline.cancel()
            super().connection_lost(exc)

        def handle_websocket_upgrade(self, event) -> None:  # type: ignore[no-untyped-def]
            self._deadline.cancel()
            super().handle_websocket_upgrade(event)

    return DeadlineProtocol


class Server(uvicorn.Server):
    """Uvicorn with a callback once it listens. It closes live views before it waits for connections to
    end."""

    def __init__(self, config: uvicorn.Config, service: Service, on_listening: Callable[[str], None]) -> None:
        super().__init__(config)
        self._service, self._on_listening = service, on_listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            self._on_listening(f"http://{f'[{host}]' if ':' in host else host}:{port}")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.hub.close()
        await super().shutdown(sockets)


def serve(config: ServeConfig, on_listening: Callable[[str, str, bool | None], None]) -> None:
    """Run until Ctrl-C or SIGTERM. `on_listening` is called with the address, the model's name and whether a
    demo model is trained, once frames are accepted."""
    model, name, is_trained = load_model(config)
    if model.config.backbone is None:
        remedy = "the server needs one with a backbone, which takes pictures."
        raise ConfigError(f"the model {name} takes feature vectors; {remedy}")
    service = Service(config, open_engine(model, config.engine), name, is_trained)
    limits = config.limits
    settings = uvicorn.Config(
        create_app(service),
        host=config.host,
        port=config.port,
        http=with_deadline(limits.header_s),
        ws="websockets-sansio",
        ws_max_size=limits.frame_bytes + ENVELOPE_BYTES + 1000,  # a little larger is refused with its reason
        ws_max_queue=4,
        ws_per_message_deflate=False,
        limit_concurrency=limits.connections,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=20,
        log_config=None,
        access_log=False,
        server_header=False,
    )
    server = Server(settings, service, lambda url: on_listening(url, name, is_trained))
    for number in (signal.SIGINT, signal.SIGTERM):
        # Uvicorn shuts down on these, then raises them again; an orderly end is exit code 0.
        signal.signal(number, lambda *_: None)
    try:
        server.run()
    except SystemExit as error:  # raised by uvicorn when the address cannot be used
        if server.started:
            raise
        remedy = "the port is taken or not allowed. Choose another with --port."
        raise ConfigError(f"cannot listen on {config.host}:{config.port}; {remedy}") from error
