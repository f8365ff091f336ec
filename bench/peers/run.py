#!/usr/bin/env python3
"""Measures turns and durable steps of other products on this machine, one after the other.

Everything lives in a temporary folder (or, with `--environments DIR`, the installed packages in DIR)
and ends with this script. See README.md for what is compared and what the figures do not say.
"""

import argparse
import contextlib
import json
import os
import platform
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
PEERS = ["evenkeel", "langgraph-postgres", "langgraph-sqlite", "dbos", "restate"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=Path, help="our turns on PostgreSQL: target/release/examples/turns")
    parser.add_argument("--steps", type=Path, help="our steps on SQLite: target/release/examples/steps")
    parser.add_argument("--environments", type=Path, help="keep the packages here, to use them again")
    parser.add_argument("--prepare", action="store_true", help="only install (needs --environments)")
    parser.add_argument("--only", action="append", choices=PEERS, help="measure this one; may be repeated")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each case lasts")
    parser.add_argument("--clients-max", type=int, default=256, help="leave larger cases out")
    parser.add_argument("--json", type=Path, help="also write the figures here, one JSON object a line")
    options = parser.parse_args()
    if options.prepare and not options.environments:
        parser.error("--prepare needs --environments DIR, where the packages are to stay")
    return options


def main():
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped by SIGTERM; everything is cleaned up"))
    with temporary_folder() as folder:
        environments = Environments(options.environments or folder / "environments")
        wanted = [peer for peer in PEERS if peer in (options.only or PEERS)]
        environments.install(wanted)
        if options.prepare:
            return
        figures, synced = measure(wanted, options, environments, folder)
        print(report(figures, conditions(synced)))
        if options.json:
            options.json.write_text("".join(json.dumps(line) + "\n" for line in figures))


@contextlib.contextmanager
def temporary_folder():
    folder = Path(tempfile.mkdtemp(prefix="evenkeel-peers-"))
    # PostgreSQL refuses to run as root; its user must be able to pass through.
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(wanted, options, environments, folder):
    how = {
        "evenkeel": evenkeel,
        "langgraph-postgres": langgraph_postgres,
        "langgraph-sqlite": langgraph_sqlite,
        "dbos": dbos,
        "restate": restate,
    }
    figures, synced = [], []
    for peer in wanted:
        synced.append(synced_writes(folder))
        state = f"{synced[-1]} synced writes/s, load {os.getloadavg()[0]:.1f}"
        print(f"measuring {peer} ({state}) ...", file=sys.stderr, flush=True)
        figures += how[peer](options, environments, folder)
    return figures, synced


# What each peer is started with.


def evenkeel(options, _environments, folder):
    figures = []
    for name, parsed in [("turns", parsed_turns), ("steps", parsed_steps)]:
        program = getattr(options, name)
        if program:
            # Where their data goes: one asks the environment, the other its first argument.
            where = [folder / "steps"] if name == "steps" else []
            text = run([program.resolve(), *where], env={"TMPDIR": str(folder)})
            print(text, file=sys.stderr)
            figures += parsed(text)
        else:
            print(
                f"our {name} are left out: build them with `cargo build --release --locked -p evenkeel-store "
                f"--example {name}` and give --{name} target/release/examples/{name}",
                file=sys.stderr,
            )
    return figures


def parsed_turns(text):
    """Our example asserts at its end that no turn was lost or doubled."""
    for line in text.splitlines():
        row = re.fullmatch(r" *(\d+) +(\d+)((?: +[\d.]+){8})", line)
        if row:
            more = [float(word) for word in row[3].split()]
            fields = {"turns_per_s": more[0], "p50_ms": more[5], "p99_ms": more[6], "lost": 0, "doubled": 0}
            yield ours("postgres", threads=int(row[1]), clients=int(row[2]), **fields)


def parsed_steps(text):
    """Each call of `commit_step` counts, as each recorded step of the others does."""
    for line in text.splitlines():
        row = re.fullmatch(r" *(\d+) +([\d.]+)((?: +[\d.]+){5}) +\w+", line)
        if row:
            yield ours("sqlite", workflows=int(row[1]), steps_per_s=float(row[2]))


def ours(store, **fields):
    return {"peer": "evenkeel", "store": store, **fields}


def langgraph_postgres(options, environments, folder):
    with Postgres(folder) as postgres:
        store = postgres.database("langgraph")
        # A saver waits for one connection at a time, so two processes leave a core idle.
        more = ["--processes", 2 * cores(), "--store", store]
        return script(options, environments, "langgraph", *more, env=postgres.secret())


def langgraph_sqlite(options, environments, folder):
    # One process: SQLite has one writer, and the saver does not expect to wait for another process.
    return script(options, environments, "langgraph", "--store", folder / "langgraph.sqlite")


def dbos(options, environments, folder):
    with Postgres(folder) as postgres:
        url = postgres.database("dbos")
        more = ["--processes", cores(), "--url", url]
        return script(options, environments, "dbos", *more, env=postgres.secret())


def script(options, environments, peer, *more, env=None):
    load = ["--seconds", options.seconds, "--clients-max", options.clients_max]
    return lines([environments.python(peer), "-B", HERE / f"{peer}_turns.py", *load, *more], options, env)


def restate(options, environments, folder):
    node = environments.node()
    ingress, admin, fabric, service = (free_port() for _ in range(4))
    settings = {
        "RESTATE_BASE_DIR": str(folder / "restate"),
        "RESTATE_LISTEN_MODE": "tcp",
        "RESTATE_BIND_IP": "127.0.0.1",
        "RESTATE_BIND_PORT": str(fabric),
        "RESTATE_INGRESS__BIND_PORT": str(ingress),
        "RESTATE_ADMIN__BIND_PORT": str(admin),
        "RESTATE_DISABLE_TELEMETRY": "true",
        "RESTATE_LOG_FILTER": "error",
    }
    log = folder / "restate.log"
    program = environments.node_program()
    command = [program, node / "restate_service.mjs", service]
    with (
        started([restate_server(node), "--node-name", "bench"], log, env=settings),
        started(command, folder / "service.log", env={"NODE_ENV": "production"}),
    ):
        register(f"http://127.0.0.1:{admin}/deployments", f"http://127.0.0.1:{service}", log)
        url = f"http://127.0.0.1:{ingress}"
        load = [options.seconds, options.clients_max]
        return lines([program, node / "restate_turns.mjs", url, *load], options)


def restate_server(node):
    """The program itself: its npm wrapper would outlive, or be outlived by, the server."""
    found = sorted(node.glob("node_modules/@restatedev/restate-server-*/bin/restate-server"))
    if not found:
        sys.exit(f"npm installed no restate-server for {platform.machine()}: choose others with --only")
    return found[0]


def register(admin, service, log):
    """Tells Restate where its service is, as soon as both of them answer."""
    body = json.dumps({"uri": service}).encode()
    request = urllib.request.Request(admin, body, {"content-type": "application/json"})
    until = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(request, timeout=10).close()
            return
        except (urllib.error.URLError, OSError) as error:
            if time.monotonic() > until:
                sys.exit(f"Restate did not accept its service: {error}\n{tail(log)}")
            time.sleep(0.2)


# Packages.


class Environments:
    """Virtual environments and node modules with the pinned packages."""

    def __init__(self, folder):
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)

    def install(self, wanted):
        for name in sorted({peer.split("-")[0] for peer in wanted} & {"langgraph", "dbos"}):
            self._python(name)
        if "restate" in wanted:
            self._node()

    def python(self, name):
        return self.folder / name / "bin" / "python"

    def node(self):
        return self.folder / "restate"

    def node_program(self):
        """The pinned Node.js: Restate's SDK needs 22, and many machines have an older one."""
        found = sorted(self.node().glob("node_modules/node-linux-*/bin/node"))
        return found[0] if found else Path(shutil.which("node"))

    def _python(self, name):
        wanted = HERE / f"requirements-{name}.txt"
        if not self.python(name).exists():
            run([sys.executable, "-m", "venv", self.folder / name])
        run([self.python(name), "-m", "pip", "install", "--quiet", "--requirement", wanted])

    def _node(self):
        if not shutil.which("npm"):
            sys.exit("npm is not installed: install Node.js 20 or newer, or choose others with --only")
        self.node().mkdir(exist_ok=True)
        # Modules are looked for beside the script that imports them.
        for name in ["package.json", "restate_service.mjs", "restate_turns.mjs"]:
            shutil.copy(HERE / name, self.node())
        quiet = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"]
        run(["npm", "install", *quiet], cwd=self.node())


# PostgreSQL.


class Postgres:
    """A PostgreSQL for one peer, as durable as any other: `fsync` on, the rest as it comes."""

    def __init__(self, folder):
        self.folder = folder / f"postgres-{secrets.token_hex(4)}"
        self.bin = postgres_programs()
        self.password = secrets.token_hex(16)
        self.port = free_port()

    def __enter__(self):
        self.folder.mkdir()
        (self.folder / "password").write_text(self.password)
        give_to_postgres(self.folder)
        pwfile = f"--pwfile={self.folder / 'password'}"
        self._program("initdb", "-D", self.folder / "data", "-U", "bench", "-A", "scram-sha-256", pwfile)
        settings = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": 200,
            "fsync": "on",
        }
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        command = [self.bin / "postgres", "-D", self.folder / "data", *words]
        self.process = started(command, self.folder / "log", stop=signal.SIGINT, **postgres_user())
        self.process.__enter__()
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.process.__exit__(None, None, None)
        shutil.rmtree(self.folder, ignore_errors=True)

    def database(self, name):
        """Makes a database; gives its URL, which works together with the secret."""
        self._sql("postgres", f"CREATE DATABASE {name}")
        return f"postgresql://bench@127.0.0.1:{self.port}/{name}"

    def secret(self):
        """Passed on in the environment, because a command line can be read by everybody."""
        return {"PGPASSWORD": self.password}

    def _wait(self):
        until = time.monotonic() + 60
        ready = [self.bin / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        while subprocess.run(ready, check=False).returncode != 0:
            if time.monotonic() > until:
                sys.exit(f"PostgreSQL did not start:\n{tail(self.folder / 'log')}")
            time.sleep(0.1)

    def _sql(self, database, sql):
        where = ["-h", "127.0.0.1", "-p", self.port, "-U", "bench", "-d", database]
        run([self.bin / "psql", "-q", *where, "-c", sql], env=self.secret())

    def _program(self, name, *words):
        run([self.bin / name, *words], **postgres_user())


def postgres_programs():
    programs = installed_postgres()
    if not programs:
        sys.exit("PostgreSQL is not installed: install the package `postgresql`, or choose others with --only")
    return programs


def installed_postgres():
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("postgres")
    if found:
        return found[-1].parent
    return Path(on_path).parent if on_path else None


def postgres_user():
    """PostgreSQL refuses to run as root."""
    return {"user": "postgres", "group": "postgres", "cwd": "/"} if os.geteuid() == 0 else {}


def give_to_postgres(folder):
    if os.geteuid() == 0:
        for path in [folder, *folder.iterdir()]:
            shutil.chown(path, "postgres", "postgres")


# Processes.


@contextlib.contextmanager
def started(command, log, stop=signal.SIGTERM, env=None, **more):
    """A process that ends with the block it is started for."""
    with open(log, "wb") as out:
        words = [str(word) for word in command]
        process = subprocess.Popen(words, stdout=out, stderr=out, env={**os.environ, **(env or {})}, **more)
    try:
        yield process
    finally:
        process.send_signal(stop)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def run(command, env=None, **more):
    """Runs a program to its end; gives what it printed."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **(env or {})}, **more)
    if done.returncode != 0:
        said = done.stdout[-500:] + done.stderr[-3000:]
        sys.exit(f"`{' '.join(words[:6])}` failed ({done.returncode}):\n{said}")
    return done.stdout


def lines(command, options, env=None):
    """The JSON lines of a peer's script, shown as they come."""
    figures = []
    words = [str(word) for word in command]
    # A group of its own, so that its worker processes end with it.
    settings = {"env": {**os.environ, **(env or {})}, "start_new_session": True}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, **settings)
    limit = threading.Timer(120 + 30 * options.seconds, end_group, [process])
    limit.start()
    try:
        for line in process.stdout:
            print(line, end="", file=sys.stderr, flush=True)
            figures.append(json.loads(line))
        if process.wait() != 0:
            name = next(Path(word).name for word in words if word.endswith((".py", ".mjs")))
            sys.exit(f"{name} failed ({process.returncode}): its message stands above, or it took too long")
    finally:
        limit.cancel()
        end_group(process)
        process.wait()
    return figures


def end_group(process):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def cores():
    return len(os.sched_getaffinity(0))


def tail(path):
    return "\n".join(path.read_text(errors="replace").splitlines()[-10:]) if path.exists() else ""


# The report.


def report(figures, where):
    return "\n".join([where, "", *turns_table(figures), "", *steps_table(figures)])


def turns_table(figures):
    rows = [line for line in figures if "turns_per_s" in line]
    best = {(row["threads"], row["clients"]): row["turns_per_s"] for row in rows if row["peer"] == "evenkeel"}
    yield "| threads | clients | product | store | turns/s | p50 ms | p99 ms | lost | doubled | Evenkeel is |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for row in sorted(rows, key=lambda row: (row["clients"] != row["threads"], row["clients"])):
        times = ratio(row, best.get((row["threads"], row["clients"])), row["turns_per_s"])
        yield (
            "| {threads} | {clients} | {peer} | {store} | {turns_per_s:.0f} | {p50_ms:.1f} | {p99_ms:.1f} "
            "| {lost} | {doubled} |".format(**row) + f" {times} |"
        )


def steps_table(figures):
    rows = [line for line in figures if "steps_per_s" in line]
    best = {row["workflows"]: row["steps_per_s"] for row in rows if row["peer"] == "evenkeel"}
    yield "| workflows at a time | product | store | durable steps/s | Evenkeel is |"
    yield "|---|---|---|---|---|"
    for row in sorted(rows, key=lambda row: row["workflows"]):
        times = ratio(row, best.get(row["workflows"]), row["steps_per_s"])
        yield "| {workflows} | {peer} | {store} | {steps_per_s:.0f} |".format(**row) + f" {times} |"


def ratio(row, our_rate, their_rate):
    if row["peer"] == "evenkeel" or not our_rate or not their_rate:
        return ""
    return f"{our_rate / their_rate:.1f} x"


def conditions(synced):
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    programs = installed_postgres()
    postgres = run([programs / "postgres", "--version"]).strip() if programs else "no PostgreSQL"
    return (
        f"{cores()} cores ({cpu[1] if cpu else platform.machine()}), Linux {platform.release()}, "
        f"{postgres} with fsync on, Python {platform.python_version()}, "
        f"{min(synced)} to {max(synced)} synced 8 KiB writes/s on this disk before each product"
    )


def synced_writes(folder):
    """How often a second this disk can be made to keep something."""
    n, until = 0, time.monotonic() + 1
    with open(folder / "synced", "wb", buffering=0) as file:
        while time.monotonic() < until:
            os.pwrite(file.fileno(), b"x" * 8192, 0)
            os.fdatasync(file.fileno())
            n += 1
    return n


if __name__ == "__main__":
    main()
