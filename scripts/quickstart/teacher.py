"""A teacher behind an OpenAI-compatible endpoint: it knows the quickstart's commands, and is right by chance.

python -m scripts.quickstart.teacher PORT [SHARE]
"""

import json
import random
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from scripts.quickstart import answers
from scripts.quickstart.make_tasks import make_cases

CASES = {case.instruction: case for case in make_cases().values()}


def say(messages: list[dict[str, Any]], share: float, chance: random.Random) -> str:
    """The next answer of a conversation; a prompt without a known instruction gets a short one."""
    case = next((case for text, case in CASES.items() if text in messages[0]["content"]), None)
    if case is None:
        return "yes"
    if any(message["role"] == "assistant" for message in messages):
        return answers.answer(answers.DONE[1], answers.FINISH, None, complete=True)
    command = case.right if chance.random() < share else chance.choice(case.wrong).typed
    return answers.answer(answers.START[0], answers.CAREFUL, command, complete=True)


def serve(port: int, share: float) -> None:
    chance = random.Random(0)

    class Endpoint(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._give({"object": "list", "data": [{"id": "teacher", "object": "model"}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            text = say(body["messages"], share, chance)
            usage = {
                "prompt_tokens": sum(len(m["content"]) // 4 for m in body["messages"]),
                "completion_tokens": len(text) // 4,
            }
            message = {"role": "assistant", "content": text}
            self._give({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage})

        def _give(self, value: Any) -> None:
            content = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    ThreadingHTTPServer(("127.0.0.1", port), Endpoint).serve_forever()


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python -m scripts.quickstart.teacher PORT [SHARE]")
    serve(int(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) == 3 else 1.0)
