-- The first schema. Times are milliseconds since 1970 (UTC). Ids are 16-byte UUIDs.
--
-- A `body` column holds JSON: as TEXT when it is short, else as the 32-byte BLOB that names it in
-- `blobs`. Rows that change often are short; what is written once stands beside them.

CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value ANY NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE threads (
    n            INTEGER PRIMARY KEY,
    id           BLOB NOT NULL UNIQUE,
    tenant       TEXT NOT NULL,
    metadata     ANY NOT NULL,           -- body
    created_at   INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL,
    version      INTEGER NOT NULL,
    epoch        INTEGER NOT NULL,
    seq_last     INTEGER NOT NULL,
    context_from INTEGER NOT NULL,
    active       BLOB,                   -- id of the run that holds the thread
    n_waiting    INTEGER NOT NULL,
    newest_run   BLOB
) STRICT;

CREATE TABLE runs (
    n             INTEGER PRIMARY KEY,   -- order of arrival: the order of the inbox
    id            BLOB NOT NULL UNIQUE,
    thread        INTEGER NOT NULL REFERENCES threads (n),
    tenant        TEXT NOT NULL,
    state         TEXT NOT NULL,
    ready         INTEGER NOT NULL,      -- 1: queued and next on its thread
    wait_on       TEXT,
    wait_reason   TEXT,
    wait_since    INTEGER,
    wait_until    INTEGER,
    wait_route    TEXT,
    step          INTEGER NOT NULL,
    attempt       INTEGER NOT NULL,
    owner         BLOB,
    version       INTEGER,
    key           TEXT,
    body_hash     TEXT NOT NULL,
    class         INTEGER NOT NULL,      -- 0 interactive, 1 batch
    busy_policy   TEXT NOT NULL,
    deadline      INTEGER NOT NULL,
    created_at    INTEGER NOT NULL,
    updated_at    INTEGER NOT NULL,
    tokens_in     INTEGER NOT NULL,
    tokens_cached INTEGER NOT NULL,
    tokens_out    INTEGER NOT NULL,
    estimated     INTEGER NOT NULL
) STRICT;
CREATE INDEX runs_by_thread ON runs (thread);
CREATE INDEX runs_by_tenant ON runs (tenant);
CREATE INDEX runs_by_state ON runs (state);
-- The queues are partial indexes: as small as what waits in them.
CREATE INDEX runs_inbox ON runs (thread) WHERE state = 'queued';
CREATE INDEX runs_ready ON runs (n) WHERE ready = 1;
CREATE INDEX runs_parked ON runs (wait_on, wait_route, class, deadline) WHERE state = 'waiting';
CREATE INDEX runs_unowned ON runs (deadline) WHERE state IN ('queued', 'waiting');
CREATE INDEX runs_owned ON runs (owner, state) WHERE owner IS NOT NULL;

CREATE TABLE run_specs (
    run  INTEGER PRIMARY KEY REFERENCES runs (n),
    spec ANY NOT NULL                    -- body
) STRICT;

CREATE TABLE run_outcomes (
    run     INTEGER PRIMARY KEY REFERENCES runs (n),
    outcome ANY NOT NULL                 -- body
) STRICT;

CREATE TABLE events (
    n      INTEGER PRIMARY KEY,
    thread INTEGER NOT NULL REFERENCES threads (n),
    seq    INTEGER NOT NULL,
    run    INTEGER NOT NULL REFERENCES runs (n),
    step   INTEGER NOT NULL,
    at     INTEGER NOT NULL,
    body   ANY NOT NULL                  -- body
) STRICT;
CREATE UNIQUE INDEX events_by_seq ON events (thread, seq);

-- Where the intent and the result of an effect are in the log of its thread. An effect's id is made
-- from its run, so it is unique when it is unique there.
CREATE TABLE effects (
    run      INTEGER NOT NULL REFERENCES runs (n),
    effect   TEXT NOT NULL,
    intended INTEGER,
    settled  INTEGER,
    PRIMARY KEY (run, effect)
) STRICT, WITHOUT ROWID;

-- `scope` is the thread's id, or empty for a key that holds for the whole tenant.
CREATE TABLE idempotency_keys (
    tenant     TEXT NOT NULL,
    scope      BLOB NOT NULL,
    key        TEXT NOT NULL,
    run        INTEGER NOT NULL REFERENCES runs (n),
    created_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, scope, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE accepted_messages (
    thread  INTEGER NOT NULL REFERENCES threads (n),
    message TEXT NOT NULL,
    run     INTEGER NOT NULL REFERENCES runs (n),
    PRIMARY KEY (thread, message)
) STRICT, WITHOUT ROWID;

CREATE TABLE blobs (
    id     BLOB NOT NULL UNIQUE,         -- BLAKE3 of the bytes
    size   INTEGER NOT NULL,
    packed INTEGER NOT NULL,             -- 1: compressed with zstd
    bytes  BLOB NOT NULL
) STRICT;

CREATE TABLE api_keys (
    hash          TEXT PRIMARY KEY,
    tenant        TEXT NOT NULL,
    name          TEXT NOT NULL,
    calls_per_min INTEGER,
    expires_at    INTEGER,
    created_at    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
