"""Access to the server: known host names, our own pages and, except on loopback, holders of the token."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import re
import secrets
from dataclasses import dataclass
from urllib.parse import parse_qs, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leanfed.errors import InputError

LEAST_TOKEN = 16  # characters of a token chosen by the user
MOST_BODY = 4 * 2**20  # bytes of a request: a fleet file of some ten thousand rows
TOKEN_VARIABLE = "LEANFED_TOKEN"
# Styles may be inline because the plotting script sets them; nothing is ever loaded from elsewhere.
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # without it forms send no Origin; the token is not sent to other sites
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
SIGN_IN = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>leanfed: token</title><style>body{font:16px system-ui,sans-serif;max-width:32rem;margin:4rem auto;padding:0 1rem}
input,button{font:inherit;padding:.4rem}:root{color-scheme:light dark}</style>
<h1>This page needs its token</h1><p>The terminal in which <code>leanfed serve</code> was started shows it.</p>
<form method="post" action="/login"><label>Token
<input type="password" name="token" autocomplete="off" autofocus></label>
<button>Open</button></form></html>"""


@dataclass(frozen=True)
class Rules:
    """The guard's rules for requests."""

    host: str  # the address that is listened on
    port: int
    token: str | None = None
    names: frozenset[str] = frozenset()  # other names under which the server is reached

    @property
    def cookie(self) -> str:
        """The cookie's name, with the port in it because browsers share cookies between ports."""
        return f"leanfed_{self.port}"

    def knows_host(self, header: str) -> bool:
        """Whether a Host header is ours: a name that an attacker's DNS could point here (rebinding) is not."""
        name = _host_name(header)
        address = _address(name)
        if address is not None:
            return address.is_loopback or not is_loopback(self.host)
        return name in {"localhost", self.host.lower(), *self.names}

    def holds_token(self, given: str | None) -> bool:
        """Whether the given token is right, compared in constant time."""
        if self.token is None:
            return True
        return given is not None and hmac.compare_digest(_digest(given), _digest(self.token))


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def choose_token(host: str, wanted: bool) -> str | None:
    """The token: needed away from loopback or when wanted; the user's (LEANFED_TOKEN), else a new one."""
    if is_loopback(host) and not wanted:
        return None
    own = os.environ.get(TOKEN_VARIABLE)
    if own is None:
        return secrets.token_urlsafe(32)
    if len(own) < LEAST_TOKEN:
        raise InputError(f"{TOKEN_VARIABLE} has {len(own)} characters; give at least {LEAST_TOKEN}, or unset it.")
    return own


class Guard:
    """Middleware around the application: refuses requests, and adds security headers to responses."""

    def __init__(self, app: ASGIApp, rules: Rules) -> None:
        self.app, self.rules = app, rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return  # no websockets here
        request = Request(scope, receive)
        answer = self._refusal(request) or await self._sign_in(request)

        async def send_strict(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await (self.app if answer is None else answer)(scope, receive, send_strict)

    def _refusal(self, request: Request) -> Response | None:
        """The refusal of unknown hosts and of requests sent by another site's page; else None."""
        headers = request.headers
        if not self.rules.knows_host(headers.get("host", "")):
            return PlainTextResponse("This host name is not served here; see --allow-host.", 421)
        if request.method in ("GET", "HEAD"):
            return None
        if not _same_origin(headers):
            return PlainTextResponse("Requests from other sites are refused.", 403)
        length = headers.get("content-length", "")
        if not length.isdecimal() or int(length) > MOST_BODY:
            return PlainTextResponse(f"A request holds at most {MOST_BODY} bytes, and says how many.", 413)
        is_json = headers.get("content-type", "").split(";")[0].strip() == "application/json"
        if not is_json and request.scope["path"] != "/login":
            return PlainTextResponse("Send JSON (Content-Type: application/json).", 415)
        return None

    async def _sign_in(self, request: Request) -> Response | None:
        """None if the token is present or not needed; else the sign-in page."""
        rules = self.rules
        if request.scope["path"] == "/login" and request.method == "POST":
            given = parse_qs((await request.body()).decode(errors="replace")).get("token", [None])[0]
            return self._welcome("/") if rules.holds_token(given) else HTMLResponse(SIGN_IN, 401)
        if rules.token is not None and request.method == "GET" and rules.holds_token(request.query_params.get("token")):
            left = urlencode([(key, value) for key, value in request.query_params.multi_items() if key != "token"])
            return self._welcome(f"/{str(request.scope['path']).lstrip('/')}{'?' if left else ''}{left}")
        if rules.holds_token(_bearer(request.headers)) or rules.holds_token(request.cookies.get(rules.cookie)):
            return None
        wants_page = "text/html" in request.headers.get("accept", "")
        return HTMLResponse(SIGN_IN, 401) if wants_page else PlainTextResponse("The token is missing or wrong.", 401)

    def _welcome(self, place: str) -> Response:
        response = RedirectResponse(place, 303)
        if self.rules.token is not None:
            response.set_cookie(self.rules.cookie, self.rules.token, httponly=True, samesite="strict")
        return response


def _same_origin(headers: Headers) -> bool:
    """Whether a request comes from our own page, or from no page at all."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site not in (None, "same-origin", "none"):
        return False
    return origin is None or urlsplit(origin).netloc.lower() == headers.get("host", "").lower()


def _bearer(headers: Headers) -> str | None:
    kind, _, given = headers.get("authorization", "").partition(" ")
    return given.strip() if kind.lower() == "bearer" else None


def _host_name(header: str) -> str:
    """The name in a Host header, without port and brackets."""
    found = re.fullmatch(r"(?:\[([0-9a-f:.]+)\]|([\w.-]+))(?::\d+)?", header.lower())
    return "" if found is None else found[1] or found[2]


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
