"""A model that always does the same: OpenAI's chat and responses interfaces, streamed and not.

Each answer is a function of the request alone (its messages, its tools, the model's name), so a
framework that resumes, repeats or forgets gets the same model as one that does not. It proves what
frameworks do with a refund tool, not what a real model would choose.

The model's name says how it behaves after `get_refundable` and `propose_refund`:

- `insists`: an answer that reads like a failure makes it propose again, in other words
- `asks-twice-in-one-turn`: it proposes twice at once, and insists
- `asks-again`: it proposes once more after the answer, whatever that was, and insists
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

INSISTS = "insists"
ASKS_TWICE_IN_ONE_TURN = "asks-twice-in-one-turn"
ASKS_AGAIN = "asks-again"

#: What makes a model believe that nothing happened, in the words of eight frameworks.
READS_LIKE_A_FAILURE = re.compile(
    r"error|timed?[ _-]?out|exception|failed|unavailable|try again|aborted|not connected|"
    r"terminated|bad gateway|connection closed|cancelled",
    re.IGNORECASE,
)
PROPOSALS_MAX = 3
AMOUNT_MINOR = 2_500
#: A prompt names its cell in these brackets, so that what was asked can be counted by cell.
CELL = re.compile(r"\[([\w.-]+)\]")


def prompt_of(cell: str) -> str:
    """What the customer wrote."""
    return f"[{cell}] The mug arrived broken. Please give me 25.00 back."


class Turn:
    """What one request says: the prompt, the tools, and the calls that were answered so far."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.name = str(body.get("model", "")).rpartition("/")[2]
        self.prompt = ""
        self.tools: dict[str, dict[str, Any]] = {}
        for tool in body.get("tools") or []:
            function = tool.get("function", tool)
            self.tools[function["name"]] = function.get("parameters") or {}
        calls: list[tuple[str, str]] = []
        results: dict[str, str] = {}
        items: Any = body.get("messages") or body.get("input") or []
        if isinstance(items, str):
            items = [{"role": "user", "content": items}]
        for item in items:
            if item.get("type") == "function_call":
                calls.append((item["call_id"], item["name"]))
            elif item.get("type") == "function_call_output":
                results[item["call_id"]] = _text(item["output"])
            elif item.get("role") == "tool":
                results[item["tool_call_id"]] = _text(item["content"])
            elif item.get("role") == "assistant":
                calls += [(c["id"], c["function"]["name"]) for c in item.get("tool_calls") or []]
            elif item.get("role") == "user":
                self.prompt += _text(item.get("content")) + "\n"
        #: Tool name and result, in the order of the calls.
        self.answered = [(name, results[call]) for call, name in calls if call in results]

    def tool(self, name: str) -> str:
        """A tool by the end of its name: some frameworks put the server's name before it."""
        for known in self.tools:
            if known.endswith(name):
                return known
        raise ValueError(f"the framework offers no {name}, but {sorted(self.tools)}")

    def results(self, name: str) -> list[str]:
        """What the calls of one tool were answered."""
        return [result for called, result in self.answered if called.endswith(name)]


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(_text(part) for part in content)
    if isinstance(content, dict):
        return str(content.get("text") or content.get("output") or json.dumps(content))
    return "" if content is None else str(content)


def decide(turn: Turn) -> list[tuple[str, dict[str, Any]]] | str:
    """The tool calls that come next, or the last words."""
    if not turn.results("get_refundable"):
        return [(turn.tool("get_refundable"), {})]
    answers = turn.results("propose_refund")
    asked = len(answers)
    if not answers:
        calls = 2 if turn.name == ASKS_TWICE_IN_ONE_TURN else 1
        return [_proposal(turn, number) for number in range(1, calls + 1)]
    again = turn.name == ASKS_AGAIN and asked == 1
    if again or (READS_LIKE_A_FAILURE.search(answers[-1]) and asked < PROPOSALS_MAX):
        return [_proposal(turn, asked + 1)]
    return f"Done after {len(turn.answered)} tool calls. The last answer was: {answers[-1][:300]}"


def _proposal(turn: Turn, number: int) -> tuple[str, dict[str, Any]]:
    tool = turn.tool("propose_refund")
    reason = (turn.tools[tool].get("properties") or {}).get("reason", {})
    return tool, {
        "amount_minor": AMOUNT_MINOR,
        "reason": (reason.get("enum") or ["requested_by_customer"])[0],
        # No two proposals of a model read the same.
        "note": f"the mug arrived broken, proposal {number}",
    }


class ScriptedModel(ThreadingHTTPServer):
    """The model on a free loopback port, in threads of this process. `url` is its base address."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"
        #: How often the model asked for a refund, by cell.
        self.asked: Counter[str] = Counter()
        #: How often it said its last words, by cell.
        self.endings: Counter[str] = Counter()
        self._counting = threading.Lock()

    def __enter__(self) -> ScriptedModel:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that was killed, or reset its connection, is no news."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def answer(self, body: dict[str, Any]) -> tuple[int, list[tuple[str, dict[str, Any]]] | str]:
        """How many calls were answered so far, and what comes next."""
        turn = Turn(body)
        decided = decide(turn)
        cell = CELL.search(turn.prompt)
        with self._counting:
            if cell is None:
                pass
            elif isinstance(decided, str):
                self.endings[cell[1]] += 1
            else:
                self.asked[cell[1]] += sum(name.endswith("propose_refund") for name, _ in decided)
        return len(turn.answered), decided


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ScriptedModel

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            number, decided = self.server.answer(body)
        except ValueError as error:
            self._send("text/plain", str(error).encode(), status=400)
            return
        make = _responses if self.path.endswith("/responses") else _chat
        whole, events = make(body, number, decided)
        if body.get("stream"):
            self._send("text/event-stream", "".join(events).encode())
        else:
            self._send("application/json", json.dumps(whole).encode())

    def _send(self, kind: str, raw: bytes, *, status: int = 200) -> None:
        try:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)
        except OSError:
            self.close_connection = True  # its framework was killed


Decided = list[tuple[str, dict[str, Any]]] | str


def _chat(body: dict[str, Any], number: int, decided: Decided) -> tuple[Any, Iterable[str]]:
    """A chat completion, whole and as events."""
    message: dict[str, Any] = {"role": "assistant", "content": decided}
    if not isinstance(decided, str):
        message["content"] = None
        message["tool_calls"] = [
            {
                "id": f"call_{number}_{index}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for index, (name, arguments) in enumerate(decided)
        ]
    finish = "stop" if isinstance(decided, str) else "tool_calls"
    head = {"id": f"chatcmpl-{number}", "created": int(time.time()), "model": body.get("model")}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    whole = {
        **head,
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": usage,
    }
    delta = dict(message)
    if "tool_calls" in delta:
        delta["tool_calls"] = [{"index": i, **c} for i, c in enumerate(delta["tool_calls"])]
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]},
        {"choices": [], "usage": usage},
    ]
    events = [
        f"data: {json.dumps({**head, 'object': 'chat.completion.chunk', **chunk})}\n\n"
        for chunk in chunks
    ]
    return whole, [*events, "data: [DONE]\n\n"]


def _responses(body: dict[str, Any], number: int, decided: Decided) -> tuple[Any, Iterable[str]]:
    """A response, whole and as events."""
    output: list[dict[str, Any]]
    if isinstance(decided, str):
        part = {"type": "output_text", "text": decided, "annotations": []}
        output = [{"type": "message", "id": f"msg_{number}", "role": "assistant"}]
        output[0] |= {"status": "completed", "content": [part]}
    else:
        output = [
            {
                "type": "function_call",
                "id": f"fc_{number}_{index}",
                "call_id": f"call_{number}_{index}",
                "name": name,
                "arguments": json.dumps(arguments),
                "status": "completed",
            }
            for index, (name, arguments) in enumerate(decided)
        ]
    whole = {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "completed",
        "model": body.get("model"),
        "output": output,
        "tools": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "metadata": {},
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "temperature": 0,
        "top_p": 1,
        "usage": {
            "input_tokens": 1,
            "output_tokens": 1,
            "total_tokens": 2,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    }
    steps: list[dict[str, Any]] = [
        {"type": "response.created", "response": {**whole, "status": "in_progress", "output": []}}
    ]
    for index, item in enumerate(output):
        at = {"output_index": index, "item_id": item["id"]}
        begun = {**item, "status": "in_progress"}
        steps.append({"type": "response.output_item.added", **at, "item": begun})
        if item["type"] == "function_call":
            arguments = item["arguments"]
            kind = "response.function_call_arguments"
            steps.append({"type": f"{kind}.delta", **at, "delta": arguments})
            steps.append(
                {"type": f"{kind}.done", **at, "arguments": arguments, "name": item["name"]}
            )
        else:
            steps.append(
                {"type": "response.output_text.delta", **at, "content_index": 0, "logprobs": []}
                | {"delta": decided}
            )
        steps.append({"type": "response.output_item.done", **at, "item": item})
    steps.append({"type": "response.completed", "response": whole})
    events = [
        f"event: {step['type']}\ndata: {json.dumps({**step, 'sequence_number': number})}\n\n"
        for number, step in enumerate(steps)
    ]
    return whole, events
