"""Request guard: host and token checks, security headers.

Loopback alone protects nothing: any page that is open in a browser can send requests to it, under any host name. So
every request must name a loopback host (against DNS rebinding) and bear the token. Only GET and HEAD are answered.
"""

from __future__ import annotations

import hmac
import re
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?", re.IGNORECASE)
POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    ]
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "cache-control": "no-store",
}
REFUSED = "This dashboard asks for a token: open the address that `evo-kernel serve` printed.\n"


class Guard:
    """Wraps the whole application. `cookie`: its name; ports share cookies, so it must tell servers apart."""

    def __init__(self, app: ASGIApp, token: str, cookie: str) -> None:
        if len(token) < 16:
            raise ValueError("a token needs at least 16 characters")
        self._app, self._token, self._cookie = app, token, cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # a web socket: there are none here
            await send({"type": "websocket.close", "code": 1008})
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        answer = self._answer(scope)
        await (answer or self._app)(scope, receive, guarded)

    def _answer(self, scope: Scope) -> Response | None:
        """What is answered here; None: let it pass."""
        headers = Headers(scope=scope)
        if not HOST.fullmatch(headers.get("host", "")):
            return PlainTextResponse("The host must be a loopback address.\n", 421)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("Everything here is read-only.\n", 405, {"allow": "GET, HEAD"})
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in query if name == "token"]
        if given:
            return self._let_in(scope, query) if self._is_token(given[0]) else self._refuse()
        return None if any(map(self._is_token, self._borne(headers))) else self._refuse()

    def _let_in(self, scope: Scope, query: list[tuple[str, str]]) -> Response:
        """The token goes from the address, which is seen and kept, to a cookie that scripts and other sites lack."""
        rest = urlencode([(name, value) for name, value in query if name != "token"])
        path = "/" + scope["path"].lstrip("/\\")  # never another host
        answer = RedirectResponse(path + ("?" + rest if rest else ""), 303)
        answer.set_cookie(self._cookie, self._token, httponly=True, samesite="strict", path="/")
        return answer

    def _borne(self, headers: Headers) -> list[str]:
        found = []
        scheme, _, value = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            found.append(value.strip())
        try:
            cookies = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            return found
        if self._cookie in cookies:
            found.append(cookies[self._cookie].value)
        return found

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._token.encode())

    def _refuse(self) -> Response:
        return PlainTextResponse(REFUSED, 401, {"www-authenticate": "Bearer"})
