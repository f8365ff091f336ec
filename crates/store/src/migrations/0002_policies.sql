-- Policies for a busy thread, stops with their reason, hidden runs, and which thread names which blob.

ALTER TABLE threads ADD COLUMN busy_policy TEXT;
-- The event that set `context_from`. Of a thread that is older than this column it is not known; the
-- newest event stands for it.
ALTER TABLE threads ADD COLUMN context_at INTEGER NOT NULL DEFAULT 0;
UPDATE threads SET context_at = seq_last WHERE context_from > 1;
CREATE INDEX threads_by_tenant ON threads (tenant, created_at, id);

ALTER TABLE runs ADD COLUMN not_before INTEGER;
ALTER TABLE runs ADD COLUMN stop TEXT;                              -- JSON: why it is to end
ALTER TABLE runs ADD COLUMN base_seq INTEGER;                       -- its thread before its first claim
ALTER TABLE runs ADD COLUMN base_context INTEGER;
-- 1: an ended run that was deleted, or the author of events that is no run.
ALTER TABLE runs ADD COLUMN hidden INTEGER NOT NULL DEFAULT 0;
UPDATE runs SET base_context = 1, base_seq = (SELECT min(seq) - 1 FROM events
        WHERE events.thread = runs.thread AND events.run = runs.n)
    WHERE attempt > 0 AND state IN ('queued', 'running', 'waiting', 'cancelling');
DROP INDEX runs_by_state;
CREATE INDEX runs_by_state ON runs (state) WHERE hidden = 0;

-- Keys whose scope is the whole tenant, by their run: they go with its thread.
CREATE INDEX keys_of_tenant ON idempotency_keys (run) WHERE scope = x'';

-- A blob goes with the last thread that names it: in a body that was moved out of its row, or as
-- the whole output of a tool.
CREATE TABLE blob_names (
    blob   BLOB NOT NULL,
    thread INTEGER NOT NULL REFERENCES threads (n),
    PRIMARY KEY (blob, thread)
) STRICT, WITHOUT ROWID;
CREATE INDEX blob_names_by_thread ON blob_names (thread);
INSERT OR IGNORE INTO blob_names SELECT metadata, n FROM threads WHERE typeof(metadata) = 'blob';
INSERT OR IGNORE INTO blob_names SELECT body, thread FROM events WHERE typeof(body) = 'blob';
INSERT OR IGNORE INTO blob_names
    SELECT s.spec, r.thread FROM run_specs s JOIN runs r ON r.n = s.run WHERE typeof(s.spec) = 'blob';
INSERT OR IGNORE INTO blob_names
    SELECT o.outcome, r.thread FROM run_outcomes o JOIN runs r ON r.n = o.run WHERE typeof(o.outcome) = 'blob';
INSERT OR IGNORE INTO blob_names
    SELECT unhex(json_extract(body, '$.blob')), thread FROM events
    WHERE typeof(body) = 'text' AND json_extract(body, '$.type') = 'effect_settled'
      AND unhex(json_extract(body, '$.blob')) IS NOT NULL;
