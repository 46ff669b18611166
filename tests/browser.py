#!/usr/bin/env python3
"""Opens a page that `tiebreak shaders --page` wrote in a Chromium without a window, on SwiftShader, and waits for its verdict.

    python3 tests/browser.py PAGE [--chromium PROGRAM] [--seconds 1800]

It prints the page's report. The exit status is 0 if every tensor was equal, 1 if one was not, or the page could not run.
Standard library only.
"""

import argparse
import http.server
import json
import pathlib
import subprocess
import sys
import tempfile
import threading


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("page", type=pathlib.Path)
    parser.add_argument("--chromium", default="chromium")
    parser.add_argument("--seconds", type=float, default=1800)
    arguments = parser.parse_args()
    page, told, done = arguments.page.read_bytes(), {}, threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            found = self.path == "/?tell"
            self.answer(200 if found else 404, page if found else b"")

        def do_POST(self) -> None:
            told.update(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.answer(200, b"")
            done.set()

        def log_message(self, *_) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as profile:
        command = [
            arguments.chromium, "--headless", "--no-sandbox", "--no-first-run", f"--user-data-dir={profile}",
            "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader",
            f"http://127.0.0.1:{server.server_address[1]}/?tell",
        ]
        browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            done.wait(arguments.seconds)
        finally:
            browser.terminate()
            browser.wait()
    print(told.get("text", f"the page said nothing within {arguments.seconds:g} s"))
    return 0 if told.get("equal") else 1


if __name__ == "__main__":
    sys.exit(main())
