"""Asks two servers of the LangGraph Agent Server dialect the same things and compares the answers.

Usage: probe.py EVENKEEL_URL [REPOSITORY [REFERENCE_URL]]; the repository is not used

Without REFERENCE_URL the reference server is started from the packages beside this Python, serves
`graph.py`, and is stopped at the end. What must be equal is written as facts: status, the headers
that clients use, the members of a shape, and the values that clients decide by. Every difference
fails, except those of ALLOWED, each with its reason; an allowed difference that has gone fails too,
so that the list only holds what is true.
"""

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import uuid

# Probe -> why Evenkeel answers otherwise.
ALLOWED: dict[str, str] = {
    "run create: status": "a free slot claims the run in the transaction that stores it",
    "stream end": "`end` with the status saves every client one GET a stream",
    "history": "there is no checkpoint before the first message: the empty thread is not a state of it",
    "stream unknown run": "a run that is not there is 404 for every verb",
}

NO_ID = "00000000-0000-4000-8000-000000000000"
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body) if self.body.strip() else None

    def place(self, name):
        """A header that names a place, without ids and without a query."""
        return UUID.sub("ID", (self.headers.get(name) or "").split("?")[0])


class Server:
    """One of the two servers, and the facts that it showed."""

    def __init__(self, url):
        self.url, self.facts = url, {}

    def ask(self, method, path, body=None, headers=None, timeout=60):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method=method)
        request.add_header("content-type", "application/json")
        for name, value in (headers or {}).items():
            request.add_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return Answer(answer.status, answer.headers, answer.read())
        except urllib.error.HTTPError as refused:
            return Answer(refused.code, refused.headers, refused.read())

    def get(self, path, **more):
        return self.ask("GET", path, **more)

    def post(self, path, body=None, **more):
        return self.ask("POST", path, {} if body is None else body, **more)

    def fact(self, name, value):
        assert name not in self.facts, name
        self.facts[name] = value

    def thread(self):
        return self.post("/threads").json["thread_id"]

    def run(self, thread, text, **more):
        return self.post(f"/threads/{thread}/runs", turn(text, **more)).json["run_id"]

    def until(self, thread, run, *statuses):
        """Waits until a run has one of these statuses; 404 is the status `gone`."""
        for _ in range(300):
            answer = self.get(f"/threads/{thread}/runs/{run}")
            status = answer.json["status"] if answer.status == 200 else "gone"
            if status in statuses:
                return status
            time.sleep(0.1)
        raise AssertionError(f"{self.url}: run {run} is still {status}, not {statuses}")

    def settle(self, thread):
        for _ in range(300):
            shown = self.get(f"/threads/{thread}").json
            if shown["status"] != "busy":
                return shown["status"]
            time.sleep(0.1)
        raise AssertionError(f"{self.url}: thread {thread} stays busy")

    def said(self, thread):
        """The conversation: kinds and texts."""
        values = self.get(f"/threads/{thread}/state").json["values"]
        return [f"{m['type']}: {m['content']}" for m in values.get("messages", [])]


def turn(text, **more):
    return {"assistant_id": "chat", "input": {"messages": [{"role": "user", "content": text}]}, **more}


def members(value, *wanted):
    """Which of the members that clients read are there."""
    return [name for name in wanted if name in (value or {})]


def events(answer):
    """The names of a stream's events, repetitions left out."""
    names = [line[7:].strip() for line in answer.body.decode().splitlines() if line.startswith("event: ")]
    return [name for idx, name in enumerate(names) if idx == 0 or names[idx - 1] != name]


RUN = ["run_id", "thread_id", "assistant_id", "metadata", "status", "kwargs", "multitask_strategy",
       "created_at", "updated_at"]
THREAD = ["thread_id", "created_at", "updated_at", "state_updated_at", "metadata", "status", "config",
          "values"]
STATE = ["values", "next", "tasks", "metadata", "created_at", "checkpoint", "parent_checkpoint",
         "interrupts", "checkpoint_id", "parent_checkpoint_id"]
ASSISTANT = ["assistant_id", "graph_id", "config", "context", "metadata", "name", "description",
             "version", "created_at", "updated_at"]


def assistants(s):
    found = s.post("/assistants/search", {"graph_id": "chat"})
    s.fact("assistants search", [found.status, members(found.json[0], *ASSISTANT), found.json[0]["graph_id"]])
    s.fact("assistants total", found.headers.get("x-pagination-total"))
    one = s.get(f"/assistants/{found.json[0]['assistant_id']}")
    s.fact("assistants get", [one.status, one.json["name"], one.json["metadata"].get("created_by")])
    s.fact("assistants unknown", s.get(f"/assistants/{NO_ID}").status)
    s.fact("assistants malformed", s.get("/assistants/not-a-uuid").status)
    graph = s.get(f"/assistants/{found.json[0]['assistant_id']}/graph")
    s.fact("assistants graph", [graph.status, members(graph.json, "nodes", "edges"),
                                sorted(node["id"] for node in graph.json["nodes"])])
    schemas = s.get(f"/assistants/{found.json[0]['assistant_id']}/schemas")
    s.fact("assistants schemas", [schemas.status, members(
        schemas.json, "graph_id", "input_schema", "output_schema", "state_schema", "config_schema")])
    s.fact("ok", s.get("/ok").json["ok"])
    s.fact("info", members(s.get("/info").json, "version", "langgraph_py_version", "flags", "host"))


def threads(s):
    own = str(uuid.uuid4())
    made = s.post("/threads", {"thread_id": own, "metadata": {"probe": own, "n": 1}})
    s.fact("thread create", [made.status, members(made.json, *THREAD), made.json["status"],
                             made.json["values"], made.json["thread_id"] == own])
    s.fact("thread again", s.post("/threads", {"thread_id": own}).status)
    s.fact("thread do_nothing", s.post("/threads", {"thread_id": own, "if_exists": "do_nothing"}).status)
    s.fact("thread malformed create", s.post("/threads", {"thread_id": "x"}).status)
    s.fact("thread malformed", [s.get("/threads/x").status, s.get("/threads/x").json["detail"]])
    s.fact("thread unknown", s.get(f"/threads/{NO_ID}").status)
    patched = s.ask("PATCH", f"/threads/{own}", {"metadata": {"n": 2, "more": [1]}})
    s.fact("thread patch", [patched.status, {k: patched.json["metadata"].get(k) for k in ("n", "more")},
                            patched.json["metadata"]["probe"] == own])
    s.fact("thread patch unknown", s.ask("PATCH", f"/threads/{NO_ID}", {"metadata": {}}).status)
    for n in range(3):
        s.post("/threads", {"metadata": {"probe": own, "n": 10 + n}})
    found = s.post("/threads/search", {"metadata": {"probe": own}, "limit": 2})
    s.fact("thread search", [found.status, len(found.json), members(found.json[0], *THREAD)])
    s.fact("thread search next", found.headers.get("x-pagination-next"))
    rest = s.post("/threads/search", {"metadata": {"probe": own}, "limit": 2, "offset": 2})
    s.fact("thread search rest", [len(rest.json), rest.headers.get("x-pagination-total"),
                                  rest.headers.get("x-pagination-next")])
    by = lambda **more: [t["metadata"].get("n") for t in
                         s.post("/threads/search", {"metadata": {"probe": own}, **more}).json]
    s.fact("thread search default order", by())
    s.fact("thread search ascending", by(sort_by="created_at", sort_order="asc"))
    s.fact("thread search by id", len(by(ids=[own])))
    s.fact("thread search status", [by(status="idle", sort_by="created_at", sort_order="asc"), by(status="busy")])
    s.fact("thread search select", sorted(s.post("/threads/search", {
        "metadata": {"probe": own}, "limit": 1, "select": ["thread_id", "status"]}).json[0]))
    s.fact("thread search odd status", s.post("/threads/search", {"status": "odd"}).status)
    s.fact("thread count", [s.post("/threads/count", {"metadata": {"probe": own}}).json,
                            s.post("/threads/count", {"metadata": {"probe": own}, "status": "error"}).json])
    gone = s.ask("DELETE", f"/threads/{own}")
    s.fact("thread delete", [gone.status, s.get(f"/threads/{own}").status, s.ask("DELETE", f"/threads/{own}").status])


def runs(s):
    thread = s.thread()
    made = s.post(f"/threads/{thread}/runs", turn("hello", metadata={"a": 1}))
    run = made.json["run_id"]
    s.fact("run create", [made.status, members(made.json, *RUN), made.json["metadata"].get("a"),
                          made.json["multitask_strategy"], made.place("content-location"), made.place("location")])
    s.fact("run create: status", made.json["status"])
    joined = s.get(f"/threads/{thread}/runs/{run}/join")
    s.fact("run join", [joined.status, [m["type"] for m in joined.json["messages"]], joined.place("location"),
                        joined.place("content-location"), joined.headers.get_content_type()])
    shown = s.get(f"/threads/{thread}/runs/{run}")
    s.fact("run get", [shown.status, shown.json["status"], members(shown.json["kwargs"], "input")])
    s.fact("run unknown", s.get(f"/threads/{thread}/runs/{NO_ID}").status)
    s.fact("run malformed", s.get(f"/threads/{thread}/runs/x").status)
    waited = s.post(f"/threads/{thread}/runs/wait", turn("again"))
    s.fact("run wait", [waited.status, [m["type"] for m in waited.json["messages"]], waited.place("location"),
                        waited.place("content-location")])
    listed = s.get(f"/threads/{thread}/runs")
    s.fact("run list", [listed.status, len(listed.json), listed.json[1]["run_id"] == run])
    s.fact("run list page", [len(s.get(f"/threads/{thread}/runs?limit=1").json),
                             s.get(f"/threads/{thread}/runs?limit=1&offset=1").json[0]["run_id"] == run])
    s.fact("run list status", [len(s.get(f"/threads/{thread}/runs?status=success").json),
                               len(s.get(f"/threads/{thread}/runs?status=error").json)])
    s.fact("run list unknown thread", s.get(f"/threads/{NO_ID}/runs").status)
    s.fact("run no assistant", s.post(f"/threads/{thread}/runs", turn("x", assistant_id=NO_ID)).status)
    s.fact("run unknown graph", s.post(f"/threads/{thread}/runs", turn("x", assistant_id="nobody")).status)
    s.fact("run missing assistant", s.post(f"/threads/{thread}/runs", {"input": {}}).status)
    s.fact("run unknown thread", s.post(f"/threads/{NO_ID}/runs", turn("x")).status)
    s.fact("run malformed thread", s.post("/threads/x/runs", turn("x")).status)
    s.fact("run unknown policy", s.post(f"/threads/{thread}/runs", turn("x", multitask_strategy="shout")).status)
    s.fact("run unknown mode", s.post(f"/threads/{thread}/runs", turn("x", stream_mode="loud")).status)
    own = str(uuid.uuid4())
    created = s.post(f"/threads/{own}/runs", turn("x", if_not_exists="create"))
    s.fact("run makes its thread", [created.status, s.settle(own), s.get(f"/threads/{own}").status])
    gone = s.ask("DELETE", f"/threads/{thread}/runs/{run}")
    s.fact("run delete", [gone.status, s.get(f"/threads/{thread}/runs/{run}").status,
                          len(s.get(f"/threads/{thread}/runs").json),
                          s.ask("DELETE", f"/threads/{thread}/runs/{run}").status])
    failed = s.run(thread, "please fail")
    s.fact("run error", s.until(thread, failed, "error"))
    joined = s.get(f"/threads/{thread}/runs/{failed}/join")
    s.fact("run error join", [joined.status, sorted(joined.json.get("__error__", {}))[:2]])
    s.fact("thread of a failed run", [s.settle(thread), members(s.get(f"/threads/{thread}").json["error"], "error", "message")])


def delayed(s):
    thread = s.thread()
    begun = time.monotonic()
    run = s.run(thread, "later", after_seconds=2)
    s.fact("delayed is pending", s.get(f"/threads/{thread}/runs/{run}").json["status"])
    s.until(thread, run, "success")
    s.fact("delayed waits", time.monotonic() - begun >= 1.9)


def states(s):
    thread = s.thread()
    empty = s.get(f"/threads/{thread}/state")
    s.fact("state empty", [empty.status, members(empty.json, *STATE), empty.json["values"], empty.json["next"],
                           empty.json["checkpoint"]])
    s.fact("state unknown", s.get(f"/threads/{NO_ID}/state").status)
    s.post(f"/threads/{thread}/runs/wait", turn("one"))
    s.post(f"/threads/{thread}/runs/wait", turn("two"))
    state = s.get(f"/threads/{thread}/state").json
    s.fact("state", [members(state, *STATE), len(state["values"]["messages"]), state["next"],
                     members(state["checkpoint"], "checkpoint_id", "thread_id", "checkpoint_ns"),
                     state["checkpoint"]["checkpoint_id"] == state["checkpoint_id"],
                     members(state["metadata"], "source", "step", "run_id")])
    at = s.get(f"/threads/{thread}/state/{state['checkpoint_id']}")
    s.fact("state at checkpoint", [at.status, at.json["values"] == state["values"]])
    at = s.post(f"/threads/{thread}/state/checkpoint", {"checkpoint": state["checkpoint"]})
    s.fact("state at checkpoint by body", [at.status, at.json["values"] == state["values"]])
    history = s.get(f"/threads/{thread}/history?limit=100").json
    sizes = sorted({len(h["values"].get("messages", [])) for h in history})
    s.fact("history", [sizes, history[0]["checkpoint_id"] == state["checkpoint_id"],
                       history[0]["parent_checkpoint"]["checkpoint_id"] == history[1]["checkpoint_id"]])
    s.fact("history limit", len(s.post(f"/threads/{thread}/history", {"limit": 1}).json))
    before = s.post(f"/threads/{thread}/history", {"limit": 1, "before": {"configurable": history[0]["checkpoint"]}}).json
    s.fact("history before", before[0]["checkpoint_id"] == history[1]["checkpoint_id"])
    run = state["metadata"]["run_id"]
    own = s.post(f"/threads/{thread}/history", {"limit": 100, "metadata": {"run_id": run}}).json
    s.fact("history metadata", {h["metadata"]["run_id"] for h in own} == {run})
    # A fork from the state after the first turn.
    first = next(h for h in history if len(h["values"].get("messages", [])) == 2 and not h["next"])
    forked = s.post(f"/threads/{thread}/runs/wait", turn("three", checkpoint_id=first["checkpoint_id"]))
    s.fact("fork", [m["content"] for m in forked.json["messages"] if m["type"] == "human"])
    written = s.post(f"/threads/{thread}/state", {"values": {"messages": [
        {"role": "user", "content": "noted", "id": "note-1"}]}, "as_node": "agent"})
    s.fact("state write", [written.status, members(written.json["checkpoint"], "checkpoint_id", "thread_id")])
    s.fact("state written", s.said(thread)[-1])
    s.post(f"/threads/{thread}/state", {"values": {"messages": [
        {"role": "user", "content": "noted better", "id": "note-1"}]}, "as_node": "agent"})
    said = s.said(thread)
    s.fact("state write replaces", [said[-1], len(said)])
    s.fact("state source", s.get(f"/threads/{thread}/state").json["metadata"]["source"])
    s.fact("state write unknown", s.post(f"/threads/{NO_ID}/state", {"values": {}}).status)
    slow = s.run(thread, "slow one")
    s.until(thread, slow, "running")
    s.fact("state write busy", s.post(f"/threads/{thread}/state", {"values": {"messages": []}, "as_node": "agent"}).status)
    s.settle(thread)


def streams(s):
    thread = s.thread()
    answer = s.post(f"/threads/{thread}/runs/stream", turn("hello", stream_mode=["values", "updates"], stream_resumable=True))
    names = events(answer)
    s.fact("stream headers", [answer.status, answer.headers.get("content-type"), answer.headers.get("cache-control"),
                              answer.headers.get("x-accel-buffering"), answer.place("location"), answer.place("content-location")])
    s.fact("stream begins", names[0])
    s.fact("stream events", sorted(set(names) - {"end"}))
    s.fact("stream end", names[-1] == "end")
    s.fact("stream line ends", b"\r\n\r\n" in answer.body)
    run = answer.place("content-location") and s.get(f"/threads/{thread}/runs").json[0]["run_id"]
    again = s.get(f"/threads/{thread}/runs/{run}/stream?stream_mode=values", headers={"last-event-id": "-1"})
    s.fact("stream replay", [again.status, "values" in events(again)])
    s.fact("stream of an ended run", [name for name in events(s.get(f"/threads/{thread}/runs/{run}/stream")) if name != "end"])
    for mode, wanted in (("messages-tuple", ["messages"]), ("messages", ["messages/metadata"]), ("tasks", ["tasks"]),
                         ("checkpoints", ["checkpoints"]), ("debug", ["debug"]), ("events", ["events"]), ("custom", [])):
        names = set(events(s.post(f"/threads/{thread}/runs/stream", turn("hi", stream_mode=mode))))
        s.fact(f"mode {mode}", [name for name in wanted if name in names])
    failed = s.post(f"/threads/{thread}/runs/stream", turn("please fail", stream_mode="values"))
    s.fact("stream error", [failed.status, "error" in events(failed)])
    s.fact("stream unknown run", s.get(f"/threads/{thread}/runs/{NO_ID}/stream").status)


def stateless(s):
    waited = s.post("/runs/wait", turn("alone"))
    s.fact("stateless wait", [waited.status, [m["type"] for m in waited.json["messages"]], bool(waited.place("content-location"))])
    made = s.post("/runs", turn("alone"))
    s.fact("stateless create", [made.status, members(made.json, *RUN), made.place("content-location")])
    streamed = s.post("/runs/stream", turn("alone", stream_mode="updates"))
    s.fact("stateless stream", [streamed.status, sorted(set(events(streamed)) - {"end"})])
    kept = s.post("/runs", turn("alone", on_completion="keep")).json
    s.until(kept["thread_id"], kept["run_id"], "success")
    s.fact("stateless keep", s.get(f"/threads/{kept['thread_id']}").status)


def second_messages(s):
    for policy in ("enqueue", "reject", "interrupt", "rollback"):
        thread = s.thread()
        first = s.run(thread, "A slow")
        s.until(thread, first, "running")
        time.sleep(0.5)
        second = s.post(f"/threads/{thread}/runs", turn("B", multitask_strategy=policy))
        detail = second.json.get("detail", "") if second.status != 200 else ""
        s.fact(f"{policy}: answer", [second.status, detail])
        ends = [s.until(thread, first, "success", "interrupted", "error", "gone")]
        if second.status == 200:
            ends.append(s.until(thread, second.json["run_id"], "success"))
        s.fact(f"{policy}: ends", ends)
        s.fact(f"{policy}: thread", s.settle(thread))
        s.fact(f"{policy}: said", s.said(thread))


def cancels(s):
    thread = s.thread()
    run = s.run(thread, "slow")
    s.until(thread, run, "running")
    stopped = s.post(f"/threads/{thread}/runs/{run}/cancel?wait=true")
    s.fact("cancel wait", [stopped.status, s.until(thread, run, "interrupted")])
    again = s.post(f"/threads/{thread}/runs/{run}/cancel")
    s.fact("cancel ended", again.status)
    s.fact("cancel unknown", s.post(f"/threads/{thread}/runs/{NO_ID}/cancel").status)
    s.fact("cancelled thread", s.settle(thread))
    run = s.run(thread, "slow")
    s.until(thread, run, "running")
    asked = s.post(f"/threads/{thread}/runs/{run}/cancel")
    s.fact("cancel", [asked.status, asked.body.decode(), s.until(thread, run, "interrupted")])
    fresh = s.thread()
    run = s.run(fresh, "slow")
    s.until(fresh, run, "running")
    undone = s.post(f"/threads/{fresh}/runs/{run}/cancel?wait=true&action=rollback")
    s.fact("cancel rollback", [undone.status, s.until(fresh, run, "gone"), s.said(fresh)])
    first, queued = s.run(fresh, "slow"), s.run(fresh, "waits")
    s.fact("cancel queued", [s.post(f"/threads/{fresh}/runs/{queued}/cancel?wait=true").status,
                             s.until(fresh, queued, "interrupted"), s.until(fresh, first, "success")])
    first, second = s.run(fresh, "slow"), s.run(fresh, "waits")
    many = s.post("/runs/cancel", {"thread_id": fresh, "run_ids": [first, second]})
    s.fact("cancel many", [many.status, s.until(fresh, first, "interrupted"), s.until(fresh, second, "interrupted")])
    s.fact("cancel many nothing", s.post("/runs/cancel", {"thread_id": fresh, "run_ids": [NO_ID]}).status)
    s.fact("cancel many malformed", s.post("/runs/cancel", {}).status)


PROBES = [assistants, threads, runs, delayed, states, streams, stateless, second_messages, cancels]


def probe(url):
    """All facts of one server; the groups are independent and run side by side."""
    server, failures = Server(url), []

    def one(group):
        try:
            group(server)
        except Exception as error:  # Shown as a fact, so that the other groups still count.
            failures.append(f"{url} {group.__name__}: {type(error).__name__}: {error}")

    running = [threading.Thread(target=one, args=(group,)) for group in PROBES]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return server.facts, failures


def start_reference():
    """The reference server over `graph.py`, in a folder of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    here, folder = os.path.dirname(os.path.abspath(__file__)), tempfile.mkdtemp()
    for name in ("graph.py", "langgraph.json"):
        with open(os.path.join(here, name)) as source, open(os.path.join(folder, name), "w") as copy:
            copy.write(source.read())
    environment = {**os.environ, "LANGGRAPH_CLI_NO_ANALYTICS": "1", "LANGSMITH_TRACING": "false"}
    program = os.path.join(os.path.dirname(sys.executable), "langgraph")
    arguments = ["dev", "--no-browser", "--no-reload", "--host", "127.0.0.1", "--port", str(port),
                 "--n-jobs-per-worker", "20"]
    with open(os.path.join(folder, "log"), "w") as log:
        child = subprocess.Popen([program, *arguments], cwd=folder, env=environment, stdout=log, stderr=log)
    for _ in range(600):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/ok", timeout=1)
            return child, f"http://127.0.0.1:{port}"
        except OSError:
            if child.poll() is not None:
                break
            time.sleep(0.1)
    child.kill()
    raise SystemExit(f"the reference server did not start; see {folder}/log")


def main(ours, _repository=None, reference=None):
    child = None
    if reference is None:
        child, reference = start_reference()
    try:
        (theirs, failed), (own, broken) = probe(reference), probe(ours)
    finally:
        if child:
            child.terminate()
            child.wait()
    n_wrong = 0
    for failure in failed + broken:
        n_wrong += 1
        print("FAILED", failure)
    for name in theirs:
        equal, allowed = own.get(name) == theirs[name], name in ALLOWED
        if not equal:
            print("allowed" if allowed else "DIFFERS", name, "\n  reference", theirs[name], "\n  evenkeel ", own.get(name))
            if allowed:
                print("  because", ALLOWED[name])
        if equal and allowed:
            print("GONE", name, "is allowed to differ and does not")
        n_wrong += equal == allowed
    print("ok" if n_wrong == 0 else "wrong", f"{len(theirs)} facts, {n_wrong} wrong, {len(ALLOWED)} differences allowed")
    return 1 if n_wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
