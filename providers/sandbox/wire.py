"""The HTTP server, down to the bytes: written by hand because faults need every one of them."""

import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from email.utils import formatdate

from .messages import REASON_PHRASES, Answer, Request

HEAD_BYTES_MAX = 64 * 1024
BODY_BYTES_MAX = 1024 * 1024
BACKLOG = 512
# How often the accepting thread looks whether it should stop, and a hanging answer whether its
# client has gone.
LOOK_SECONDS = 0.05

# Linger on, zero seconds: close() sends RST instead of FIN.
_RESET = struct.pack("ii", 1, 0)


class Server:
    """Accepts connections on one port, one thread for each, keep-alive. `handle` gets requests."""

    def __init__(self, host: str, port: int, handle: Callable[[Request], Answer]) -> None:
        self._host = host
        self._handle = handle
        self._stopping = threading.Event()
        self._accepting = True
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = self._listen(port)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="sandbox-accept", daemon=True)

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if self._family == socket.AF_INET6 else self._host
        return f"http://{host}:{self.port}"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(timeout=5)
        self._close_listener()
        self._drop_connections()

    def down(self, seconds: float) -> None:
        """Refuse connections for a while (real time), then come back on the same port."""
        self._leave()
        self._close_listener()
        self._drop_connections()

        def back() -> None:
            self._listener = self._listen(self.port)

        self._come_back(seconds, back)

    def stall(self, seconds: float) -> None:
        """Leave connection attempts without an answer for a while (real time).

        The listening socket stays, nothing is accepted, and its queue is kept full: Linux then
        drops every further SYN. Its sender repeats it, so a patient client gets through afterwards.
        """
        self._leave()
        self._listener.listen(0)
        self._drop_connections()
        fillers = [socket.socket(self._family) for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex((self._host, self.port))

        def back() -> None:
            for filler in fillers:
                filler.close()
            self._listener.listen(BACKLOG)

        self._come_back(seconds, back)

    # Listening

    def _listen(self, port: int) -> socket.socket:
        listener = socket.socket(self._family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((self._host, port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
        return listener

    def _close_listener(self) -> None:
        # Closing alone would let a poll in another thread keep the socket listening.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _leave(self) -> None:
        """Accept nothing more. Raises ValueError when that is so already."""
        with self._lock:
            if not self._accepting:
                raise ValueError("The sandbox is down already. Nothing was changed.")
            self._accepting = False

    def _come_back(self, seconds: float, act: Callable[[], None]) -> None:
        def wait() -> None:
            self._stopping.wait(seconds)
            if not self._stopping.is_set():
                act()
                self._accepting = True

        threading.Thread(target=wait, name="sandbox-down", daemon=True).start()

    def _accept(self) -> None:
        while not self._stopping.is_set():
            listener = self._listener
            if not self._accepting or listener.fileno() < 0:
                self._stopping.wait(LOOK_SECONDS)
                continue
            try:
                if not _readable(listener, LOOK_SECONDS) or not self._accepting:
                    continue
                connection, _ = listener.accept()
            except (OSError, ValueError):
                continue  # the listening socket was closed meanwhile
            connection.setblocking(True)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._connections.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _drop_connections(self) -> None:
        with self._lock:
            open_now = list(self._connections)
        for connection in open_now:
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                connection.shutdown(socket.SHUT_RDWR)  # wakes its thread, which closes it

    # One connection

    def _serve(self, connection: socket.socket) -> None:
        buffer = bytearray()
        try:
            while not self._stopping.is_set():
                got = _read_request(connection, buffer)
                if got is None:
                    return
                if isinstance(got, int):  # not understood: say so and end the connection
                    connection.sendall(_head(Answer(got, b""), length=0, close=True))
                    return
                answer = self._handle(got)
                goes_on = self._deliver(connection, answer)
                if got.headers.get("connection", "").lower() == "close":
                    goes_on = False
                if answer.after is not None:
                    answer.after()
                if not goes_on:
                    return
        except OSError:
            return  # the client has gone; what was executed stays executed
        finally:
            with self._lock:
                self._connections.discard(connection)
            connection.close()

    def _deliver(self, connection: socket.socket, answer: Answer) -> bool:
        """Put an answer on the wire. False: the connection ends here."""
        body, params = answer.body, answer.delivery.params
        half = max(1, len(body) // 2)
        match answer.delivery.kind:
            case "whole":
                connection.sendall(_head(answer, length=len(body)) + body)
                return True
            case "close":
                return False
            case "reset":
                _reset_on_close(connection)
            case "hang":
                self._hang(connection, params["seconds"])
            case "hang-reset":
                self._hang(connection, params["seconds"])
                _reset_on_close(connection)
            case "drip":
                whole, size = _head(answer, length=len(body)) + body, params["chunk_bytes"]
                for at in range(0, len(whole), size):
                    connection.sendall(whole[at : at + size])
                    if self._stopping.wait(params["interval_seconds"]):
                        return False
                return True
            case "truncated-content-length":
                connection.sendall(_head(answer, length=len(body)) + body[:half])
            case "truncated-chunked":
                chunk = f"{len(body):x}\r\n".encode() + body[:half]
                connection.sendall(_head(answer, length=None, chunked=True) + chunk)
            case "truncated-close-delimited":
                connection.sendall(_head(answer, length=None, close=True) + body[:half])
            case unknown:
                raise ValueError(f"Bug! No way to deliver {unknown!r}")
        return False

    def _hang(self, connection: socket.socket, seconds: float) -> None:
        """Say nothing until the time is over or the client closes its side."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self._stopping.wait(LOOK_SECONDS):
            if _readable(connection, 0) and not connection.recv(1, socket.MSG_PEEK):
                return


def _readable(sock: socket.socket, seconds: float) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _reset_on_close(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


def _head(
    answer: Answer, *, length: int | None, chunked: bool = False, close: bool = False
) -> bytes:
    reason = REASON_PHRASES.get(answer.status, "Unknown")
    lines = [
        f"HTTP/1.1 {answer.status} {reason}",
        "Server: stripe-sandbox",
        f"Date: {formatdate(usegmt=True)}",
        *(f"{name}: {value}" for name, value in answer.headers),
    ]
    if length is not None:
        lines.append(f"Content-Length: {length}")
    if chunked:
        lines.append("Transfer-Encoding: chunked")
    lines.append("Connection: close" if close else "Connection: keep-alive")
    # Latin-1, as headers are; a key with other characters cannot have arrived.
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


def _read_request(connection: socket.socket, buffer: bytearray) -> Request | int | None:
    """The next request, a status for one that is not understood, None at the end."""
    while (end := buffer.find(b"\r\n\r\n")) < 0:
        if len(buffer) > HEAD_BYTES_MAX:
            return 431
        data = connection.recv(65_536)
        if not data:
            return None
        buffer += data
    first, *lines = buffer[:end].decode("latin-1").split("\r\n")
    del buffer[: end + 4]
    parts = first.split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        return 400
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            return 400
        headers[name.strip().lower()] = value.strip()
    if "transfer-encoding" in headers:
        return 411
    length = headers.get("content-length", "0")
    if not length.isdigit():
        return 400
    if int(length) > BODY_BYTES_MAX:
        return 413
    if headers.get("expect", "").lower() == "100-continue":
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    while len(buffer) < int(length):
        data = connection.recv(65_536)
        if not data:
            return None
        buffer += data
    body = bytes(buffer[: int(length)])
    del buffer[: int(length)]
    path, _, query = parts[1].partition("?")
    return Request(parts[0].upper(), path, query, headers, body)
