"""The process: load the model, listen, end in order."""

import asyncio
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import TYPE_CHECKING

import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
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
from surgicalmamba.version import __version__

if TYPE_CHECKING:
    from surgicalmamba.model.recognizer import AnyRecognizer
    from surgicalmamba.model.surgical_mamba import SurgicalMamba


# The web application: routes, the page, start and stop.


_PAGE = files("surgicalmamba.server").joinpath("page")
_TYPES = {"css": "text/css", "js": "text/javascript", "html": "text/html", "svg": "image/svg+xml"}
_FILES = ("index.html", "page.css", "page.js", "net.js", "ribbon.js", "roomview.js", "replay.js", "icon.svg")


def create_app(service: Service) -> FastAPI:
    """The application around a service. Starting it starts the service, ending it drains it."""

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
    app.include_router(public)
    app.include_router(api)
    app.include_router(push)
    for name in _FILES:
        _add_page(app, name)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_middleware(Guard, config=service.config, metrics=service.metrics)
    return app


def _add_page(app: FastAPI, name: str) -> None:
    """A file of the page under its own fixed address: no part of a request is ever a file name."""
    content = _PAGE.joinpath(name).read_bytes()
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


__all__ = ["HTTPException", "create_app"]


log = logging.getLogger("surgicalmamba.server")
_ENVELOPE_ROOM = 1024


def load_model(config: ServeConfig) -> "tuple[AnyRecognizer, str, bool | None]":
    """The model, the name it is shown under, and, for a demo model, whether it is trained."""
    from surgicalmamba.model.checkpoint import best_of, demo_model_path, load

    if config.model is None:
        try:
            return load(demo_model_path()), "demo", True
        except CheckpointError:
            return untrained_demo(), "untrained demo", False
    source = best_of(config.model)
    parts = str(source).replace("\\", "/").rstrip("/").split("/")
    name = "/".join(parts[-2:]) if parts[-1] in ("best", "last") else parts[-1]  # a run's checkpoint is known by its run
    return load(source), name, None


def untrained_demo() -> "SurgicalMamba":
    """A small model with the synthetic procedure's phases and weights that were never trained: it moves, it does not know."""
    import torch

    from surgicalmamba.data.synthetic import PHASE_NAMES
    from surgicalmamba.model.surgical_mamba import ModelConfig, SurgicalMamba

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return SurgicalMamba(ModelConfig.preset("tiny", n_phases=len(PHASE_NAMES), phases=PHASE_NAMES)).eval()


def hurried(header_s: float) -> type[H11Protocol]:
    """HTTP for a network that may be hostile: a connection that has sent no whole request in time is closed."""

    class HurriedProtocol(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._deadline = self.loop.call_later(header_s, self._give_up)

        def _give_up(self) -> None:
            began: object = self.cycle  # uvicorn sets it once a request's headers are complete
            if began is None:
                self.transport.close()

        def connection_lost(self, exc: Exception | None) -> None:
            self._deadline.cancel()
            super().connection_lost(exc)

        def handle_websocket_upgrade(self, event) -> None:  # type: ignore[no-untyped-def]
            self._deadline.cancel()
            super().handle_websocket_upgrade(event)

    return HurriedProtocol


class Server(uvicorn.Server):
    """Uvicorn that ends live views before it waits for connections to close, and says where it listens."""

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
    """Run until told to stop (Ctrl-C or SIGTERM). `on_listening` gets the address, the model's name
    and whether a demo model is trained, once frames are welcome."""
    model, name, is_trained = load_model(config)
    if model.config.backbone is None:
        raise ConfigError(f"the model {name} takes feature vectors; the server needs one with a backbone, which takes pictures.")
    service = Service(config, open_engine(model, config.engine), name, is_trained)
    limits = config.limits
    settings = uvicorn.Config(
        create_app(service),
        host=config.host,
        port=config.port,
        http=hurried(limits.header_s),
        ws="websockets-sansio",
        ws_max_size=limits.frame_bytes + _ENVELOPE_ROOM,
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
        # Uvicorn drains on these, then raises them once more; an orderly end is exit code 0.
        signal.signal(number, lambda *_: None)
    try:
        server.run()
    except SystemExit as error:  # uvicorn's way of saying that the address is taken
        if not server.started:
            where = f"{config.host}:{config.port}"
            raise ConfigError(f"cannot listen on {where}; the port is taken or not allowed. Choose another with --port.") from error
        raise

