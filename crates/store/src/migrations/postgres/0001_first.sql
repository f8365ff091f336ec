-- The first schema. Times are milliseconds since 1970 (UTC).
--
-- What is on the hot path is written so that an update touches no index (HOT): a thread and a run
-- keep what changes in `row`, as JSON, and the queues are a small table beside them, `open_runs`,
-- with a row only while a run has not ended.
--
-- A body is JSON: in `body` when it is short, else as the blob that `blob` names.

CREATE TABLE evenkeel.threads (
    id         uuid PRIMARY KEY,
    tenant     text NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    rev        bigint NOT NULL,         -- one higher with each write to anything of the thread
    mark       uuid NOT NULL,           -- the batch that wrote it last
    places     bigint NOT NULL,         -- runs that ever arrived on it
    busy       boolean NOT NULL,
    newest_run uuid,
    row        text NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX threads_by_tenant ON evenkeel.threads (tenant, created_at, id);

-- Only metadata that is not the empty object.
CREATE TABLE evenkeel.thread_metadata (
    thread uuid PRIMARY KEY,
    body   text,
    blob   bytea
);

CREATE TABLE evenkeel.runs (
    id           uuid PRIMARY KEY,
    n            bigint GENERATED ALWAYS AS IDENTITY, -- order of arrival over all threads, for lists
    thread       uuid NOT NULL,
    tenant       text NOT NULL,
    place        bigint NOT NULL,       -- order of arrival on the thread
    state        text NOT NULL,
    hidden       boolean NOT NULL DEFAULT false,
    row          text NOT NULL,
    outcome      text,
    outcome_blob bytea
) WITH (fillfactor = 70);
CREATE INDEX runs_by_arrival ON evenkeel.runs (n);
CREATE INDEX runs_by_tenant ON evenkeel.runs (tenant, n);
CREATE INDEX runs_by_thread ON evenkeel.runs (thread, n);

CREATE TABLE evenkeel.run_specs (
    run  uuid PRIMARY KEY,
    body text,
    blob bytea
);

-- The queues: runs that have not ended.
CREATE TABLE evenkeel.open_runs (
    run        uuid PRIMARY KEY,
    n          bigint GENERATED ALWAYS AS IDENTITY,
    thread     uuid NOT NULL,
    state      text NOT NULL,
    ready      boolean NOT NULL,
    not_before bigint,
    owner      uuid,
    wait_on    text,
    wait_route text,
    class      smallint NOT NULL,
    deadline   bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 5000);
CREATE INDEX open_runs_by_thread ON evenkeel.open_runs (thread);
CREATE INDEX open_runs_ready ON evenkeel.open_runs (n) WHERE ready;
CREATE INDEX open_runs_parked ON evenkeel.open_runs (wait_on, wait_route, class, deadline, n) WHERE state = 'waiting';
CREATE INDEX open_runs_unowned ON evenkeel.open_runs (deadline) WHERE state IN ('queued', 'waiting');
CREATE INDEX open_runs_cancelling ON evenkeel.open_runs (owner) WHERE state = 'cancelling';

-- Authors of events that are no runs.
CREATE TABLE evenkeel.writers (
    id     uuid PRIMARY KEY,
    thread uuid NOT NULL
);
CREATE INDEX writers_by_thread ON evenkeel.writers (thread);

CREATE TABLE evenkeel.events (
    thread uuid NOT NULL,
    seq    bigint NOT NULL,
    run    uuid NOT NULL,
    step   bigint NOT NULL,
    at     bigint NOT NULL,
    body   text,
    blob   bytea,
    PRIMARY KEY (thread, seq)
) WITH (toast_tuple_target = 8160);
ALTER TABLE evenkeel.events ALTER COLUMN body SET STORAGE EXTERNAL;

-- Where the intent and the result of an effect are in the log of its thread.
CREATE TABLE evenkeel.effects (
    run      uuid NOT NULL,
    effect   bytea NOT NULL,
    intended bigint,
    settled  bigint,
    PRIMARY KEY (run, effect)
) WITH (fillfactor = 90);

-- `scope` is the thread, or the nil UUID for a key that holds for the whole tenant.
CREATE TABLE evenkeel.idempotency_keys (
    tenant     text NOT NULL,
    scope      uuid NOT NULL,
    key        bytea NOT NULL,
    thread     uuid NOT NULL,
    run        uuid NOT NULL,
    created_at bigint NOT NULL,
    PRIMARY KEY (tenant, scope, key)
);
CREATE INDEX keys_of_tenants ON evenkeel.idempotency_keys (thread)
    WHERE scope = '00000000-0000-0000-0000-000000000000';

CREATE TABLE evenkeel.accepted_messages (
    thread  uuid NOT NULL,
    message bytea NOT NULL,
    run     uuid NOT NULL,
    PRIMARY KEY (thread, message)
);

CREATE TABLE evenkeel.blobs (
    id      bytea PRIMARY KEY,          -- BLAKE3 of the bytes
    size    bigint NOT NULL,
    packed  boolean NOT NULL,           -- compressed with zstd
    touches bigint NOT NULL,            -- one higher each time it is stored again
    bytes   bytea NOT NULL
);
ALTER TABLE evenkeel.blobs ALTER COLUMN bytes SET STORAGE EXTERNAL;

-- Which threads name a blob.
CREATE TABLE evenkeel.blob_names (
    blob   bytea NOT NULL,
    thread uuid NOT NULL,
    PRIMARY KEY (blob, thread)
);
CREATE INDEX blob_names_by_thread ON evenkeel.blob_names (thread);

CREATE TABLE evenkeel.api_keys (
    hash text PRIMARY KEY,
    row  text NOT NULL
);

-- Leases, by this server's clock.
CREATE TABLE evenkeel.replicas (
    id       uuid PRIMARY KEY,
    until    bigint NOT NULL,
    address  text,
    draining boolean NOT NULL
);

-- Writes that were refused because a later claim had taken over, by who counted them.
CREATE TABLE evenkeel.fenced (
    writer uuid PRIMARY KEY,
    n      bigint NOT NULL
);
