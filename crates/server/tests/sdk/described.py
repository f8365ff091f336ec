"""Asks the server what its own OpenAPI document says can be asked, and compares the answers with what
it promises. Usage: described.py BASE_URL REPOSITORY; needs schemathesis beside this Python.

Ids are those of threads and runs that are there, or of none. The stream of a thread is left out,
because it has no end, and so are the operators' levers."""

import json
import os
import subprocess
import sys
import tempfile
import urllib.request

url = sys.argv[1]


def ask(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url + path, data=data)) as answer:
        return json.load(answer)


document, ids = ask("/openapi.json"), {"thread": ["00000000-0000-4000-8000-000000000000"], "run": []}
turn = {"assistant_id": "chat", "input": {"messages": [{"role": "user", "content": "hello"}]}}
for _ in range(3):
    thread = ask("/threads", {})["thread_id"]
    ids["thread"].append(thread)
    ids["run"].append(ask(f"/threads/{thread}/runs", turn)["run_id"])
for operations in document["paths"].values():
    for operation in operations.values():
        for parameter in operation["parameters"]:
            if parameter["name"] in ids:
                parameter["schema"] = {"enum": ids[parameter["name"]]}
            if parameter["name"] == "assistant":
                parameter["schema"] = {"enum": ["chat", "coder", "nobody"]}
described = os.path.join(tempfile.mkdtemp(), "openapi.json")
with open(described, "w") as file:
    json.dump(document, file)

program = os.path.join(os.path.dirname(sys.executable), "schemathesis")
checks = ["not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance"]
examples = os.environ.get("EVENKEEL_EXAMPLES", "5")
arguments = [
    "run", described, "--url", url, "--max-examples", examples, "--phases", "fuzzing", "--seed", "1",
    "--checks", ",".join(checks), "--no-color", "--request-timeout", "30", "--suppress-health-check", "all",
    "--exclude-path", "/threads/{thread}/stream", "--exclude-path", "/v1/router/{deployment}/{operation}",
]
done = subprocess.run([program, *arguments], capture_output=True, text=True, cwd=os.path.dirname(described))
print(done.stdout[-20000:], done.stderr[-2000:])
if done.returncode == 0:
    print("ok")
sys.exit(done.returncode)
