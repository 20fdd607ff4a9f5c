"""The web application: routes, the page, start and stop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from surgicalmamba.serve.api import api, public
from surgicalmamba.serve.auth import Gate
from surgicalmamba.serve.guard import Guard
from surgicalmamba.serve.push import push
from surgicalmamba.serve.service import Service
from surgicalmamba.version import __version__

_PAGE = files("surgicalmamba.serve").joinpath("page")
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
