"""The HTTP side of attaching: where the server is, one request at a time, and which engine answers.

http.client rather than urllib.request: it takes no proxy from the environment and follows no redirect, so nothing goes
to a host other than the one named.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from tracekit.errors import CaptureError, UsageError

ENGINES = ("vllm", "sglang")
API_KEY = "TRACEKIT_API_KEY"
_ASK_S = 15.0  # for a question that the server answers from memory
_CONNECT_S = 1.0
_LARGEST_REPLY = 16 << 20  # the description of vLLM's endpoints takes 0.3 MB
_NO_TLS = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"}
_VERSION = re.compile(r"[\w.+-]{1,40}")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens. `prefix`: path before the engine's own, "" or such as "/engine"."""

    scheme: str
    host: str
    port: int
    prefix: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.prefix}"

    def is_here(self) -> bool:
        """Whether it leads to this machine: only its own addresses can be bound."""
        try:
            found = socket.getaddrinfo(self.host, None, type=socket.SOCK_STREAM)
        except OSError:
            return False
        return bool(found) and all(_can_bind(family, place) for family, _, _, _, place in found)


def _can_bind(family: int, place: tuple[Any, ...]) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((place[0], 0, *place[2:]))
    except OSError:
        return False
    return True


def parse_address(text: str) -> Address:
    """Read `8000`, `:8000`, `host:8000` or a URL; no host means 127.0.0.1. Raises UsageError."""
    text = text.strip()
    if text.isdecimal():
        text = f":{text}"
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"--attach {text}: {error}; expected is http://HOST:PORT, or only :PORT") from error
    if parts.scheme not in {"http", "https"} or parts.query or parts.fragment:
        raise UsageError(f"--attach {text}: expected is http://HOST:PORT, or only :PORT")
    if parts.username is not None or parts.password is not None:
        raise UsageError(f"--attach: no user or password in the address; a key goes into the variable {API_KEY}")
    if port is None and "://" not in text:
        raise UsageError(f"--attach {text}: which port? For example --attach {text}:8000")
    return Address(
        parts.scheme,
        parts.hostname or "127.0.0.1",
        port or (443 if parts.scheme == "https" else 80),
        parts.path.rstrip("/"),
    )


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer. `status`: HTTP's."""

    status: int
    body: bytes = b""

    @property
    def ok(self) -> bool:
        """Whether the server did what was asked."""
        return 200 <= self.status < 300

    def object(self) -> dict[str, Any]:
        """The JSON object in it; empty if there is none, or the request failed."""
        try:
            value = json.loads(self.body) if self.ok else None
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}


class Call:
    """One request on a thread of its own: the caller keeps the clock and Ctrl-C, however long the server takes."""

    def __init__(
        self,
        address: Address,
        method: str,
        path: str,
        body: Mapping[str, object] | None,
        seconds: float,
        *,
        then: Callable[[], None] = lambda: None,
    ):
        """then: is called when the server has answered, or cannot any more; not if it only takes too long."""
        self.what = f"{method} {path}"
        self.sent = threading.Event()
        self._address = address
        self._authorization = _authorization()
        self._done = threading.Event()
        self._then = then
        self._reply: Reply | None = None
        self._error = f"no answer within {seconds:g} s"
        threading.Thread(target=self._run, args=(method, path, body, seconds), daemon=True).start()

    @property
    def done(self) -> bool:
        """Whether there is an answer or an error."""
        return self._done.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait for the end, but no longer than that; returns whether it has come."""
        return self._done.wait(max(0.0, seconds))

    def reply(self) -> Reply:
        """The answer. Raises CaptureError if there is none."""
        if self._reply is None:
            raise CaptureError(f"{self._address}: {self.what}: {self._error}")
        return self._reply

    def _run(self, method: str, path: str, body: Mapping[str, object] | None, seconds: float) -> None:
        kind = http.client.HTTPSConnection if self._address.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._address.host, self._address.port, timeout=seconds)
        headers = {"Accept": "application/json", "Connection": "close", **self._authorization}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        try:
            connection.request(method, self._address.prefix + path, data, headers)
            self.sent.set()
            response = connection.getresponse()
            self._reply = Reply(response.status, response.read(_LARGEST_REPLY))
            self._then()
        except TimeoutError:
            pass
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._error = _plainly(error, self._address)
            self._then()
        finally:
            connection.close()
            self.sent.set()
            self._done.set()


def _authorization() -> dict[str, str]:
    key = os.environ.get(API_KEY, "").strip()
    if not key.isascii() or not key.isprintable():  # an error of the library's would show it
        raise UsageError(f"{API_KEY} holds characters that no key has")
    return {"Authorization": f"Bearer {key}"} if key else {}


def _plainly(error: Exception, address: Address) -> str:
    if isinstance(error, ssl.SSLError):
        return _plainly_tls(error, address)
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: nothing listens there. Is the server up, and is this its port?"
    if isinstance(error, socket.gaierror):
        return "no such host"
    if isinstance(error, (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)):
        return "the server closed the connection without an answer"
    if isinstance(error, http.client.HTTPException):
        return "what answers there is no HTTP server"
    return str(error) or type(error).__name__


def _plainly_tls(error: ssl.SSLError, address: Address) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted: {error.verify_message}. The variable SSL_CERT_FILE names a file of "
            "certificates that are"
        )
    if isinstance(error, ssl.SSLEOFError) or error.reason in _NO_TLS:
        return f"it speaks no TLS. Is it {replace(address, scheme='http')}?"
    return f"TLS fails: {(error.reason or 'unknown').lower().replace('_', ' ')}"


class Server:
    """A named server and what can be asked of it."""

    def __init__(self, address: Address) -> None:
        self.address = address

    def get(self, path: str) -> Reply:
        """Ask for something the server knows. Raises CaptureError if it cannot be reached or refuses the key."""
        call = Call(self.address, "GET", path, None, _ASK_S)
        call.wait(_ASK_S + 1)
        reply = call.reply()
        if reply.status in {401, 403}:
            raise CaptureError(
                f"{self.address} wants a key ({reply.status} to GET {path}). Put the server's key (for SGLang its "
                f"admin key, if it has one) into the variable {API_KEY}; it is sent to this server only"
            )
        if 300 <= reply.status < 400:
            raise CaptureError(f"{self.address} sends GET {path} on to another address; name that one in --attach")
        return reply

    def post(
        self, path: str, body: Mapping[str, object] | None, seconds: float, then: Callable[[], None] = lambda: None
    ) -> Call:
        """Have something done, which takes up to `seconds`."""
        return Call(self.address, "POST", path, body, seconds, then=then)

    def refuses(self) -> bool:
        """Whether nothing listens there any more. One that is only slow does."""
        try:
            socket.create_connection((self.address.host, self.address.port), _CONNECT_S).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            pass
        return False


@dataclass(frozen=True, slots=True)
class Engine:
    """What a server says of itself; None where it does not say.

    profiles: whether it has /start_profile. keys: what the body of that may hold. ranks: processes that write a file.
    """

    name: str
    version: str | None = None
    profiles: bool | None = None
    keys: frozenset[str] | None = None
    ranks: int | None = None


def identify(server: Server, wanted: str) -> Engine:
    """Find out which engine answers, or trust the one named. Raises CaptureError if it is none that is known."""
    if wanted not in {"auto", *ENGINES}:
        raise UsageError(f"--engine {wanted}: known are {', '.join(ENGINES)} and auto")
    profiles, keys = _start_profile(server.get("/openapi.json").object())
    version = server.get("/version").object().get("version")
    if wanted != "sglang" and isinstance(version, str):
        return Engine("vllm", _version(version), profiles, keys)
    said = server.get("/server_info").object() or server.get("/get_server_info").object()
    if wanted == "sglang" and isinstance(version, str) and "tp_size" not in said:
        raise UsageError(f"{server.address} answers as vLLM, not as SGLang; leave --engine out")
    if wanted == "vllm" and "tp_size" in said:
        raise UsageError(f"{server.address} answers as SGLang, not as vLLM; leave --engine out")
    # Named, and something keeps its version from us: it has to answer as a server of models at least.
    if wanted != "auto" and not profiles and "data" not in server.get("/v1/models").object():
        question = "/version" if wanted == "vllm" else "/server_info"
        raise CaptureError(f"{server.address} answers, but not as {wanted} (GET {question}, GET /v1/models)")
    if wanted == "vllm":
        return Engine("vllm", None, profiles, keys)
    if wanted == "sglang" or "tp_size" in said:
        return Engine("sglang", _version(said.get("version")), profiles, keys, _sglang_ranks(said))
    raise CaptureError(
        f"{server.address} answers, but neither as vLLM (GET /version) nor as SGLang (GET /server_info). If the engine "
        "is behind a gateway, name the engine's own address, or say which one it is with --engine"
    )


def _version(value: object) -> str | None:
    return value if isinstance(value, str) and _VERSION.fullmatch(value) else None


def _sglang_ranks(said: Mapping[str, Any]) -> int | None:
    sizes = [said.get("tp_size"), said.get("pp_size", 1)]
    if not said.get("enable_dp_attention"):  # with it, the data-parallel ranks are the tensor-parallel ones
        sizes.append(said.get("dp_size", 1))
    ranks = 1
    for size in sizes:
        if not isinstance(size, int) or size < 1:
            return None
        ranks *= size
    return ranks


def _start_profile(description: dict[str, Any]) -> tuple[bool | None, frozenset[str] | None]:
    """Whether the endpoint exists, and the keys its body may have, by the server's own description."""
    paths = description.get("paths")
    if not isinstance(paths, dict):
        return None, None
    operation = (paths.get("/start_profile") or {}).get("post")
    if not isinstance(operation, dict):
        return False, None
    content = (operation.get("requestBody") or {}).get("content") or {}
    if not content:
        return True, frozenset()
    return True, _properties((content.get("application/json") or {}).get("schema"), description) or None


def _properties(schema: object, description: Mapping[str, Any]) -> frozenset[str]:
    """Names of the keys of an object schema, through references and alternatives."""
    keys: set[str] = set()
    seen: set[str] = set()
    waiting = [schema]
    while waiting:
        one = waiting.pop()
        if not isinstance(one, dict):
            continue
        keys |= set(one.get("properties") or {})
        for several in ("anyOf", "oneOf", "allOf"):
            waiting += one.get(several) or []
        reference = one.get("$ref")
        if isinstance(reference, str) and reference not in seen:
            seen.add(reference)
            found: Any = description
            for name in reference.removeprefix("#/").split("/"):
                found = found.get(name) if isinstance(found, dict) else None
            waiting.append(found)
    return frozenset(keys)
