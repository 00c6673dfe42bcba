"""A real HTTP server on loopback that speaks the chat-completions protocol and answers as told, badly included.

    with ChatServer([Answer("hello"), busy(retry_after_s=0), Answer("bye")]) as server:
        LiteLLMModel("openai/anything", base_url=server.url)

Answers are served in order, the last one again and again; or a function makes them from the request. As a program
(`python -m tests.support.chat_server --delay 1`) it prints its URL and serves one answer until it is ended.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Answer:
    """One HTTP answer. Times in seconds; `tokens` = (prompt, completion, of the prompt from the cache)."""

    text: str | None = ""
    tool_calls: tuple[tuple[str, str], ...] = ()  # (name, arguments as written)
    finish: str = "stop"
    refusal: str = ""
    tokens: tuple[int, int, int] = (100, 20, 0)
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    raw: bytes | None = None  # instead of a completion
    delay_s: float = 0.0  # before the first byte
    drip_s: float = 0.0  # between bytes of the body
    reset_after: int | None = None  # bytes of the body after which the connection is reset

    def body(self, number: int, model: str) -> bytes:
        if self.raw is not None:
            return self.raw
        calls = [
            {"id": f"call_{number}_{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for i, (name, arguments) in enumerate(self.tool_calls)
        ]
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        message |= {"tool_calls": calls} if calls else {}
        message |= {"refusal": self.refusal} if self.refusal else {}
        given, made, cached = self.tokens
        finish = "tool_calls" if calls and self.finish == "stop" else self.finish
        return json.dumps(
            {
                "id": f"chat-{number}",
                "object": "chat.completion",
                "created": 1,
                "model": model,
                "choices": [{"index": 0, "message": message, "finish_reason": finish}],
                "usage": {
                    "prompt_tokens": given,
                    "completion_tokens": made,
                    "total_tokens": given + made,
                    "prompt_tokens_details": {"cached_tokens": cached},
                },
            }
        ).encode()


def failure(status: int, message: str, code: str = "", **more: Any) -> Answer:
    """An error in the protocol's form."""
    error = {"message": message, "type": "error", "code": code or None}
    return Answer(status=status, raw=json.dumps({"error": error}).encode(), **more)


def busy(retry_after_s: float | None = None) -> Answer:
    """429, with or without a word on when to come back."""
    headers = () if retry_after_s is None else (("Retry-After", f"{retry_after_s:g}"),)
    return failure(429, "rate limit reached", "rate_limit_exceeded", headers=headers)


def broken() -> Answer:
    return failure(500, "internal error")


def overflow(limit: int = 8192) -> Answer:
    return failure(
        400,
        f"This model's maximum context length is {limit} tokens. Please reduce the length.",
        "context_length_exceeded",
    )


def reset(after: int = 40) -> Answer:
    return replace(Answer("x" * 200), reset_after=after)


def drip(seconds: float = 0.05) -> Answer:
    return Answer("y" * 2000, drip_s=seconds)


Script = Sequence[Answer] | Callable[[dict[str, Any], int], Answer]


@dataclass
class ChatServer:
    """Serves `script`; `requests` are the bodies it got, `keys` the Authorization headers, in order of arrival."""

    script: Script
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    remember: bool = True

    def __post_init__(self) -> None:
        self._lock, self._served = threading.Lock(), 0
        self._http = _Http(("127.0.0.1", 0), _Handler)
        self._http.chat = self
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"

    def __enter__(self) -> ChatServer:
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.hang_up()
        self._http.server_close()

    def answer(self, request: dict[str, Any], key: str) -> tuple[int, Answer]:
        with self._lock:
            number, self._served = self._served, self._served + 1
            if self.remember:
                self.requests.append(request)
                self.keys.append(key)
        if callable(self.script):
            return number, self.script(request, number)
        return number, self.script[min(number, len(self.script) - 1)]


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256
    chat: ChatServer

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._lock, self._open = threading.Lock(), set[socket.socket]()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        """End connections that a client keeps for later, and with them the threads that listen to them."""
        with self._lock:
            left = list(self._open)
        for connection in left:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is what some tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Http

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        number, answer = self.server.chat.answer(request, self.headers.get("Authorization", ""))
        time.sleep(answer.delay_s)
        body = answer.body(number, request.get("model", ""))
        head = [f"HTTP/1.1 {answer.status} scripted", "Content-Type: application/json", f"Content-Length: {len(body)}"]
        head += [f"{name}: {value}" for name, value in answer.headers]
        self.wfile.write("\r\n".join([*head, "", ""]).encode() + (b"" if answer.drip_s else self._some(body, answer)))
        if answer.reset_after is not None:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.close_connection = True
        for i in range(len(body) if answer.drip_s else 0):
            self.wfile.write(body[i : i + 1])
            self.wfile.flush()
            time.sleep(answer.drip_s)

    @staticmethod
    def _some(body: bytes, answer: Answer) -> bytes:
        return body if answer.reset_after is None else body[: answer.reset_after]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--delay", type=float, default=1.0, help="seconds before each answer")
    options.add_argument("--text", default="ok")
    chosen = options.parse_args()
    with ChatServer([Answer(chosen.text, delay_s=chosen.delay)], remember=False) as server:
        print(server.url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
