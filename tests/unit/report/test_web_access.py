"""Who gets in: hosts, origins, tokens, sizes; what browsers are told to refuse."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from leanfed.errors import InputError
from leanfed.report.live.web_access import HEADERS, MOST_BODY, Guard, Rules, choose_token, is_loopback

TOKEN = "a-token-of-the-users-own"
JSON = {"content-type": "application/json"}


def ask(rules: Rules, method: str = "GET", path: str = "/", **options: Any) -> httpx.Response:
    """One request to a guarded application that says hello to everything."""
    app = Starlette(routes=[Route("/{rest:path}", hello, methods=["GET", "POST"])])

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app=Guard(app, rules))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8050") as client:
            return await client.request(method, path, **options)

    # In a thread of its own: a browser of another test may keep a loop going in this one.
    with ThreadPoolExecutor(1) as apart:
        return apart.submit(lambda: asyncio.run(send())).result()


def hello(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


LOOPBACK = Rules("127.0.0.1", 8050)
OPEN = Rules("0.0.0.0", 8050, TOKEN, frozenset({"lab.example"}))


@pytest.mark.parametrize("host", ["127.0.0.1:8050", "localhost:8050", "LOCALHOST", "[::1]:8050", "127.0.0.1"])
def test_own_names_are_served(host: str) -> None:
    assert ask(LOOPBACK, headers={"host": host}).text == "hello"


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8050", "10.0.0.5:8050", "127.0.0.1.evil.example", "", "127.0.0.1/x", "a@localhost"],
)
def test_a_name_that_dns_could_point_here_is_refused(host: str) -> None:
    assert ask(LOOPBACK, headers={"host": host}).status_code == 421


def test_away_from_loopback_addresses_and_allowed_names_are_served_to_holders_of_the_token() -> None:
    bearer = {"authorization": f"Bearer {TOKEN}"}
    assert ask(OPEN, headers={**bearer, "host": "10.0.0.5:8050"}).text == "hello"
    assert ask(OPEN, headers={**bearer, "host": "lab.example"}).text == "hello"
    assert ask(OPEN, headers={**bearer, "host": "evil.example"}).status_code == 421
    assert ask(OPEN, headers={"host": "10.0.0.5:8050"}).status_code == 401


@pytest.mark.parametrize("given", ["", "wrong", TOKEN[:-1], TOKEN + "x", "é" * 24])
def test_a_wrong_token_opens_nothing(given: str) -> None:
    assert ask(OPEN, headers={"authorization": f"Bearer {given}".encode()}).status_code == 401
    assert ask(OPEN, path=f"/?token={given}").status_code == 401
    assert ask(OPEN, headers={"cookie": f"leanfed_8050={given}".encode()}).status_code == 401
    refused = ask(OPEN, "POST", "/login", data={"token": given})
    assert refused.status_code == 401
    assert "set-cookie" not in refused.headers


def test_the_link_and_the_form_leave_a_cookie_and_a_clean_address() -> None:
    for answer in (ask(OPEN, path=f"/planner?token={TOKEN}&x=1"), ask(OPEN, "POST", "/login", data={"token": TOKEN})):
        assert answer.status_code == 303
        assert answer.headers["location"] in ("/planner?x=1", "/")
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "samesite=strict" in cookie.lower()
        assert ask(OPEN, headers={"cookie": cookie.split(";")[0]}).text == "hello"
    assert ask(OPEN, path=f"http://127.0.0.1:8050//evil.example/?token={TOKEN}").headers["location"] == "/evil.example/"


def test_people_without_the_token_are_asked_for_it_and_scripts_are_told() -> None:
    page = ask(OPEN, headers={"accept": "text/html"})
    assert (page.status_code, "needs its token" in page.text) == (401, True)
    assert ask(OPEN, "POST", "/stop/x", headers=JSON, content="{}").status_code == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"origin": "http://127.0.0.1:8050", "sec-fetch-site": "same-origin"}, 200),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
    ],
)
def test_only_our_own_page_can_change_anything(headers: dict[str, str], status: int) -> None:
    assert ask(LOOPBACK, "POST", "/stop/x", headers={**JSON, **headers}, content="{}").status_code == status


def test_a_request_that_is_too_long_is_refused() -> None:
    assert ask(LOOPBACK, "POST", "/api/plan", headers=JSON, content=b" " * (MOST_BODY + 1)).status_code == 413


def test_every_answer_tells_browsers_to_be_strict() -> None:
    for answer in (ask(LOOPBACK), ask(LOOPBACK, headers={"host": "evil.example"}), ask(OPEN)):
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
    policy = HEADERS["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy  # no inline script, no eval


def test_a_token_is_needed_exactly_away_from_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEANFED_TOKEN", raising=False)
    assert [choose_token(host, False) for host in ("127.0.0.1", "localhost", "::1", "127.5.5.5")] == [None] * 4
    drawn = [
        choose_token(host, False) for host in ("0.0.0.0", "::", "10.0.0.5", "lab.example", "localhost.evil.example")
    ]
    assert all(len(token or "") >= 40 for token in drawn)
    assert len(set(drawn)) == 5
    assert choose_token("127.0.0.1", True)
    monkeypatch.setenv("LEANFED_TOKEN", TOKEN)
    assert choose_token("0.0.0.0", False) == TOKEN
    monkeypatch.setenv("LEANFED_TOKEN", "short")
    with pytest.raises(InputError, match="has 5 characters; give at least 16"):
        choose_token("0.0.0.0", False)
    assert not is_loopback("0.0.0.0")
