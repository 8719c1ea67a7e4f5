# SPDX-License-Identifier: Apache-2.0
"""Answers like vLLM's HTTP server, without a model or a GPU: token i of an answer is a function of
the prompt and of i. For tests of what asks such a server.

    fake_server.py PORT
"""

import http.server
import json
import sys
import time


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if asked["model"] == "nothing":
            self.send_error(404, "there is no such model")
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for i in range(asked["max_tokens"]):
            time.sleep(0.001)
            text = f"word{(sum(asked['prompt']) + 7 * i) % 1000} "
            self._chunk("data: " + json.dumps({"choices": [{"text": text}]}) + "\n\n")
        self._chunk("data: [DONE]\n\n")
        self._chunk("")

    def _chunk(self, text):
        self.wfile.write(f"{len(text):x}\r\n{text}\r\n".encode())
        self.wfile.flush()


if __name__ == "__main__":
    http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
