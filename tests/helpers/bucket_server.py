"""An emulator of Google Cloud Storage, behind a proxy that enforces preconditions and adds faults.

`python bucket_server.py FOLDER PORT` serves the bucket "bucket", whose objects lie in FOLDER. POST
a JSON object to /faults to set `Faults`.
"""

import dataclasses
import http.client
import http.server
import json
import random
import re
import socket
import struct
import sys
import threading
import time
import urllib.parse

from gcp_storage_emulator.server import RequestHandler, create_server

HOST = "127.0.0.1"


@dataclasses.dataclass
class Faults:
    """What the proxy does to requests.

    Attributes:
      latency: seconds added to each request.
      busy: share of requests answered with 503.
      resets: share of connections reset.
      deny: {part of a URL: status} of requests that are refused.
      read_only: whether requests that write are answered with 403.
      away: whether all connections are reset.
      seed: of the random choices.
    """

    latency: float = 0.0
    busy: float = 0.0
    resets: float = 0.0
    deny: dict = dataclasses.field(default_factory=dict)
    read_only: bool = False
    away: bool = False
    seed: int = 0


class Proxy(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # Else each answer waits 40 ms for an acknowledgement.
    faults, emulator = Faults(), 0
    writes, dice = threading.Lock(), random.Random(0)

    def handle_one(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/faults":
            Proxy.faults = Faults(**json.loads(body))
            Proxy.dice = random.Random(Proxy.faults.seed)
            return self.answer(200, {}, b"{}")
        faults, dice = Proxy.faults, Proxy.dice.random()
        time.sleep(faults.latency)
        if faults.away or dice < faults.resets:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            return self.connection.close()
        if dice > 1 - faults.busy:
            return self.refuse(503)
        plain = urllib.parse.unquote(self.path + body[:2000].decode("latin-1"))
        for part, status in faults.deny.items():
            if part in plain:
                return self.refuse(int(status))
        if faults.read_only and self.command != "GET":
            return self.refuse(403)
        wanted = re.search(r"[?&]ifGenerationMatch=(\d+)", self.path)
        if self.command == "GET" and "alt=media" in self.path:
            return self.send_content()
        if not wanted:
            return self.forward(body)
        with Proxy.writes:
            if wanted[1] != self.generation(body):
                return self.refuse(412)
            return self.forward(body)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = handle_one

    def generation(self, body):
        """Returns the generation of the object that a request writes; "0" if there is none."""
        bucket = re.search(r"/b/([^/]+)/o", self.path)[1]
        multipart = "uploadType=multipart" in self.path
        found = re.search(rb'"name": "([^"]+)"', body) if multipart else None
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        name = found[1].decode() if found else query["name"][0]
        path = f"/storage/v1/b/{bucket}/o/{urllib.parse.quote(name, safe='')}"
        status, _, content = self.ask("GET", path, b"", {})
        return json.loads(content)["generation"] if status == 200 else "0"

    def send_content(self):
        """Adds what the emulator lacks: the generation, and ranges such as "bytes=-100".

        TensorStore needs the generation where it repeats a write whose answer was late. It is asked
        for first, so that content is never older than its generation.
        """
        path = self.path.split("?")[0].removeprefix("/download")
        found, _, description = self.ask("GET", path, b"", {})
        asked = {name.lower(): value for name, value in self.headers.items()}
        described = json.loads(description) if found == 200 else {}
        if described and (last := re.fullmatch(r"bytes=-(\d+)", asked.get("range", ""))):
            asked["range"] = f"bytes={max(int(described['size']) - int(last[1]), 0)}-"
        status, headers, content = self.ask("GET", self.path, b"", asked)
        if described:
            headers["x-goog-generation"] = described["generation"]
        self.answer(status, headers, content)

    def ask(self, method, path, body, headers):
        connection = http.client.HTTPConnection(HOST, Proxy.emulator)
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, dict(answer.getheaders()), content

    def forward(self, body):
        headers = dict(self.headers)
        # gcsfs ends a part with "\n"; if the part ends with "\r", the emulator takes that for a
        # part of the line end.
        if body.endswith(b"\n--==0==--"):
            body = body.removesuffix(b"\n--==0==--") + b"\r\n--==0==--"
            headers["Content-Length"] = str(len(body))
        self.answer(*self.ask(self.command, self.path, body, headers))

    def refuse(self, status):
        error = {"error": {"code": status, "message": f"injected {status}"}}
        self.answer(status, {"Content-Type": "application/json"}, json.dumps(error).encode())

    def answer(self, status, headers, content):
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        length = headers.get("Content-Length") if self.command == "HEAD" else len(content)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128  # Clients with many threads connect at once.


def main(folder, port):
    RequestHandler.disable_nagle_algorithm = True
    emulator = create_server(HOST, 0, in_memory=False, default_bucket="bucket", data_dir=folder)
    storage = emulator._storage
    # Else it keeps what is deleted, and writes a list of all objects to disk at each request.
    storage.buckets["bucket"]["softDeletePolicy"] = {"retentionDurationSeconds": 0}
    storage._write_config_to_file = lambda: None
    emulator.start()
    Proxy.emulator = emulator._api._httpd.server_address[1]
    server = Server((HOST, int(port)), Proxy)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
