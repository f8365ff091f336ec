-- The parts of a write, one function each: the server keeps the plans of what stands in a function, so
-- that a statement costs what it carries and not what its text is long. A function belongs to the
-- schema and not to a connection, so any connection of a pooler can call it.
--
-- Each takes the groups that are written (`p_ok`), the group of each row, and the rows as columns.
-- How their plans are made is set in `0005_plans.sql`. There is no EXISTS in what runs often: it may be
-- carried out by reading all of its table.

-- Locks the threads in the order of their ids; the groups whose threads are all at their `rev`.
CREATE FUNCTION evenkeel.write_check(p_id uuid[], p_grp int[], p_rev bigint[]) RETURNS int[]
LANGUAGE plpgsql AS $$
DECLARE
    good int[];
BEGIN
    PERFORM 1 FROM evenkeel.threads t WHERE t.id = ANY(p_id) ORDER BY t.id FOR NO KEY UPDATE;
    -- A statement of its own: it sees what was committed while the locks were waited for.
    SELECT coalesce(array_agg(s.grp), '{}') INTO good FROM (
        SELECT c.grp FROM unnest(p_id, p_grp, p_rev) c(id, grp, rev)
        LEFT JOIN evenkeel.threads t ON t.id = c.id
        GROUP BY c.grp HAVING bool_and(coalesce(t.rev, 0) = c.rev)
    ) s;
    RETURN good;
END $$;

-- The groups without those of which something exists that was taken to be missing.
CREATE FUNCTION evenkeel.write_except(p_good int[], p_known int[]) RETURNS int[]
LANGUAGE sql AS $$
    SELECT coalesce(array_agg(g), '{}') FROM unnest(p_good) g WHERE g <> ALL(p_known)
$$;

CREATE FUNCTION evenkeel.write_known_keys(p_grp int[], p_tenant text[], p_scope uuid[], p_key bytea[])
RETURNS int[]
LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT coalesce(array_agg(u.grp), '{}')
            FROM unnest(p_grp, p_tenant, p_scope, p_key) u(grp, tenant, scope, key)
            JOIN evenkeel.idempotency_keys k
            ON k.tenant = u.tenant AND k.scope = u.scope AND k.key = u.key);
END $$;

CREATE FUNCTION evenkeel.write_known_messages(p_grp int[], p_thread uuid[], p_message bytea[]) RETURNS int[]
LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT coalesce(array_agg(u.grp), '{}')
            FROM unnest(p_grp, p_thread, p_message) u(grp, thread, message)
            JOIN evenkeel.accepted_messages m ON m.thread = u.thread AND m.message = u.message);
END $$;

CREATE FUNCTION evenkeel.write_known_runs(p_grp int[], p_id uuid[]) RETURNS int[]
LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT coalesce(array_agg(u.grp), '{}') FROM unnest(p_grp, p_id) u(grp, id)
            LEFT JOIN evenkeel.runs r ON r.id = u.id
            LEFT JOIN evenkeel.writers w ON w.id = u.id
            WHERE r.id IS NOT NULL OR w.id IS NOT NULL);
END $$;

CREATE FUNCTION evenkeel.write_new_threads(
    p_ok int[], p_mark uuid, p_grp int[], p_id uuid[], p_updated_at bigint[], p_rev bigint[],
    p_places bigint[], p_busy boolean[], p_newest_run uuid[], p_row text[], p_tenant text[],
    p_created_at bigint[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO evenkeel.threads
        (id, tenant, created_at, updated_at, rev, mark, places, busy, newest_run, row)
    SELECT u.id, u.tenant, u.created_at, u.updated_at, u.rev, p_mark, u.places, u.busy, u.newest_run, u.row
    FROM unnest(p_grp, p_id, p_updated_at, p_rev, p_places, p_busy, p_newest_run, p_row, p_tenant,
                p_created_at)
        u(grp, id, updated_at, rev, places, busy, newest_run, row, tenant, created_at)
    WHERE u.grp = ANY(p_ok) ORDER BY u.id;
END $$;

CREATE FUNCTION evenkeel.write_old_threads(
    p_ok int[], p_mark uuid, p_grp int[], p_id uuid[], p_updated_at bigint[], p_rev bigint[],
    p_places bigint[], p_busy boolean[], p_newest_run uuid[], p_row text[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE evenkeel.threads t SET updated_at = u.updated_at, rev = u.rev, mark = p_mark,
        places = u.places, busy = u.busy, newest_run = u.newest_run, row = u.row
    FROM unnest(p_grp, p_id, p_updated_at, p_rev, p_places, p_busy, p_newest_run, p_row)
        u(grp, id, updated_at, rev, places, busy, newest_run, row)
    WHERE t.id = u.id AND u.grp = ANY(p_ok);
END $$;

CREATE FUNCTION evenkeel.write_metadata(
    p_ok int[], p_grp int[], p_thread uuid[], p_body text[], p_blob bytea[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO evenkeel.thread_metadata (thread, body, blob)
    SELECT u.thread, u.body, u.blob FROM unnest(p_grp, p_thread, p_body, p_blob) u(grp, thread, body, blob)
    WHERE u.grp = ANY(p_ok) ORDER BY u.thread
    ON CONFLICT (thread) DO UPDATE SET body = excluded.body, blob = excluded.blob;
END $$;

CREATE FUNCTION evenkeel.write_new_runs(
    p_ok int[], p_grp int[], p_id uuid[], p_state text[], p_hidden boolean[], p_row text[],
    p_thread uuid[], p_tenant text[], p_place bigint[], p_outcome text[], p_outcome_blob bytea[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO evenkeel.runs (id, thread, tenant, place, state, hidden, row, outcome, outcome_blob)
    SELECT u.id, u.thread, u.tenant, u.place, u.state, u.hidden, u.row, u.outcome, u.outcome_blob
    FROM unnest(p_grp, p_id, p_state, p_hidden, p_row, p_thread, p_tenant, p_place, p_outcome,
                p_outcome_blob) WITH ORDINALITY
        u(grp, id, state, hidden, row, thread, tenant, place, outcome, outcome_blob, ord)
    WHERE u.grp = ANY(p_ok) ORDER BY u.ord;
END $$;

CREATE FUNCTION evenkeel.write_specs(
    p_ok int[], p_grp int[], p_run uuid[], p_body text[], p_blob bytea[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO evenkeel.run_specs (run, body, blob)
    SELECT u.run, u.body, u.blob FROM unnest(p_grp, p_run, p_body, p_blob) u(grp, run, body, blob)
    WHERE u.grp = ANY(p_ok);
END $$;

CREATE FUNCTION evenkeel.write_old_runs(
    p_ok int[], p_grp int[], p_id uuid[], p_state text[], p_hidden boolean[], p_row text[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE evenkeel.runs r SET state = u.state, hidden = u.hidden, row = u.row
    FROM unnest(p_grp, p_id, p_state, p_hidden, p_row) u(grp, id, state, hidden, row)
    WHERE r.id = u.id AND u.grp = ANY(p_ok);
END $$;

CREATE FUNCTION evenkeel.write_ended_runs(
    p_ok int[], p_grp int[], p_id uuid[], p_state text[], p_hidden boolean[], p_row text[],
    p_outcome text[], p_outcome_blob bytea[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE evenkeel.runs r SET state = u.state, hidden = u.hidden, row = u.row, outcome = u.outcome,
        outcome_blob = u.outcome_blob
    FROM unnest(p_grp, p_id, p_state, p_hidden, p_row, p_outcome, p_outcome_blob)
        u(grp, id, state, hidden, row, outcome, outcome_blob)
    WHERE r.id = u.id AND u.grp = ANY(p_ok);
END $$;

CREATE FUNCTION evenkeel.write_new_open(
    p_ok int[], p_grp int[], p_run uuid[], p_state text[], p_ready boolean[], p_not_before bigint[],
    p_owner uuid[], p_wait_on text[], p_wait_route text[], p_thread uuid[], p_class bigint[],
    p_deadline bigint[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO evenkeel.open_runs
        (run, thread, state, ready, not_before, owner, wait_on, wait_route, class, deadline)
    SELECT u.run, u.thread, u.state, u.ready, u.not_before, u.owner, u.wait_on, u.wait_route, u.class,
        u.deadline
    FROM unnest(p_grp, p_run, p_state, p_ready, p_not_before, p_owner, p_wait_on, p_wait_route, p_thread,
                p_class, p_deadline) WITH ORDINALITY
        u(grp, run, state, ready, not_before, owner, wait_on, wait_route, thread, class, deadline, ord)
    WHERE u.grp = ANY(p_ok) ORDER BY u.ord;
END $$;

CREATE FUNCTION evenkeel.write_old_open(
    p_ok int[], p_grp int[], p_run uuid[], p_state text[], p_ready boolean[], p_not_before bigint[],
    p_owner uuid[], p_wait_on text[], p_wait_route text[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE evenkeel.open_runs o SET state = u.state, ready = u.ready, not_before = u.not_before,
        owner = u.owner, wait_on = u.wait_on, wait_route = u.wait_route
    FROM unnest(p_grp, p_run, p_state, p_ready, p_not_before, p_owner, p_wait_on, p_wait_route)
        u(grp, run, state, ready, not_before, owner, wait_on, wait_route)
    WHERE o.run = u.run AND u.grp = ANY(p_ok);
END $$;

CREATE FUNCTION evenkeel.write_no_longer_open(p_ok int[], p_grp int[], p_run uuid[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM evenkeel.open_runs o USING unnest(p_grp, p_run) u(grp, run)
    WHERE o.run = u.run AND u.grp = ANY(p_ok);
END $$;

CREATE FUNCTION evenkeel.write_new_events(
    p_ok int[], p_grp int[], p_thread uuid[], p_seq bigint[], p_run uuid[], p_step bigint[],
    p_at bigint[], p_body text[], p_blob bytea[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO evenkeel.events (thread, seq, run, step, at, body, blob)
    SELECT u.thread, u.seq, u.run, u.step, u.at, u.body, u.blob
    FROM unnest(p_grp, p_thread, p_seq, p_run, p_step, p_at, p_body, p_blob) WITH ORDINALITY
        u(grp, thread, seq, run, step, at, body, blob, ord)
    WHERE u.grp = ANY(p_ok) ORDER BY u.ord;
END $$;

CREATE FUNCTION evenkeel.write_new_effects(
    p_ok int[], p_grp int[], p_run uuid[], p_effect bytea[], p_intended bigint[], p_settled bigint[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO evenkeel.effects (run, effect, intended, settled)
    SELECT u.run, u.effect, u.intended, u.settled
    FROM unnest(p_grp, p_run, p_effect, p_intended, p_settled) u(grp, run, effect, intended, settled)
    WHERE u.grp = ANY(p_ok) ORDER BY u.run, u.effect
    ON CONFLICT (run, effect) DO UPDATE SET intended = excluded.intended, settled = excluded.settled;
END $$;

CREATE FUNCTION evenkeel.write_new_keys(
    p_ok int[], p_grp int[], p_tenant text[], p_scope uuid[], p_key bytea[], p_thread uuid[],
    p_run uuid[], p_created_at bigint[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO evenkeel.idempotency_keys (tenant, scope, key, thread, run, created_at)
    SELECT u.tenant, u.scope, u.key, u.thread, u.run, u.created_at
    FROM unnest(p_grp, p_tenant, p_scope, p_key, p_thread, p_run, p_created_at)
        u(grp, tenant, scope, key, thread, run, created_at)
    WHERE u.grp = ANY(p_ok) ORDER BY u.tenant, u.scope, u.key;
END $$;

CREATE FUNCTION evenkeel.write_new_messages(
    p_ok int[], p_grp int[], p_thread uuid[], p_message bytea[], p_run uuid[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO evenkeel.accepted_messages (thread, message, run)
    SELECT u.thread, u.message, u.run FROM unnest(p_grp, p_thread, p_message, p_run) u(grp, thread, message, run)
    WHERE u.grp = ANY(p_ok) ORDER BY u.thread, u.message ON CONFLICT DO NOTHING;
END $$;

CREATE FUNCTION evenkeel.write_new_writers(p_ok int[], p_grp int[], p_id uuid[], p_thread uuid[])
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO evenkeel.writers (id, thread)
    SELECT u.id, u.thread FROM unnest(p_grp, p_id, p_thread) u(grp, id, thread)
    WHERE u.grp = ANY(p_ok) ORDER BY u.id;
END $$;

-- Blobs are stored whether their group is written or not: they are named by what they hold.
CREATE FUNCTION evenkeel.write_new_blobs(
    p_ok int[], p_grp int[], p_id bytea[], p_size bigint[], p_packed boolean[], p_bytes bytea[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO evenkeel.blobs (id, size, packed, touches, bytes)
    SELECT u.id, u.size, u.packed, 0, u.bytes
    FROM unnest(p_id, p_size, p_packed, p_bytes) u(id, size, packed, bytes) ORDER BY u.id
    ON CONFLICT (id) DO UPDATE SET touches = blobs.touches + 1;
END $$;

CREATE FUNCTION evenkeel.write_new_blob_names(p_ok int[], p_grp int[], p_blob bytea[], p_thread uuid[])
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO evenkeel.blob_names (blob, thread)
    SELECT u.blob, u.thread FROM unnest(p_grp, p_blob, p_thread) u(grp, blob, thread)
    WHERE u.grp = ANY(p_ok) ORDER BY u.blob, u.thread ON CONFLICT DO NOTHING;
END $$;

-- Threads with everything that hangs on them. A blob goes if only these threads name it in the view of
-- the statement and nobody has stored it again since: that raises `touches`, which PostgreSQL looks at
-- once more when it has waited for the row.
CREATE FUNCTION evenkeel.write_deletions(p_ok int[], p_grp int[], p_id uuid[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    WITH gone AS (
        SELECT u.id FROM unnest(p_grp, p_id) u(grp, id) WHERE u.grp = ANY(p_ok)
    ), gone_run AS MATERIALIZED (
        SELECT r.id FROM evenkeel.runs r WHERE r.thread IN (SELECT id FROM gone)
    ), lone AS MATERIALIZED (
        SELECT b.id, b.touches FROM evenkeel.blobs b WHERE b.id IN (
            SELECT n.blob FROM evenkeel.blob_names n WHERE n.thread IN (SELECT id FROM gone)
        ) AND NOT EXISTS (
            SELECT 1 FROM evenkeel.blob_names o WHERE o.blob = b.id AND o.thread NOT IN (SELECT id FROM gone)
        )
    ), gone_blobs AS (
        DELETE FROM evenkeel.blobs b USING lone l WHERE b.id = l.id AND b.touches = l.touches
    ), gone_names AS (
        DELETE FROM evenkeel.blob_names WHERE thread IN (SELECT id FROM gone)
    ), gone_messages AS (
        DELETE FROM evenkeel.accepted_messages WHERE thread IN (SELECT id FROM gone)
    ), gone_keys AS (
        DELETE FROM evenkeel.idempotency_keys k USING evenkeel.threads t, gone g
        WHERE t.id = g.id AND k.tenant = t.tenant AND k.scope = g.id
    ), gone_tenant_keys AS (
        DELETE FROM evenkeel.idempotency_keys
        WHERE scope = '00000000-0000-0000-0000-000000000000' AND thread IN (SELECT id FROM gone)
    ), gone_effects AS (
        DELETE FROM evenkeel.effects WHERE run IN (SELECT id FROM gone_run)
    ), gone_specs AS (
        DELETE FROM evenkeel.run_specs WHERE run IN (SELECT id FROM gone_run)
    ), gone_events AS (
        DELETE FROM evenkeel.events WHERE thread IN (SELECT id FROM gone)
    ), gone_open AS (
        DELETE FROM evenkeel.open_runs WHERE thread IN (SELECT id FROM gone)
    ), gone_writers AS (
        DELETE FROM evenkeel.writers WHERE thread IN (SELECT id FROM gone)
    ), gone_runs AS (
        DELETE FROM evenkeel.runs WHERE thread IN (SELECT id FROM gone)
    ), gone_metadata AS (
        DELETE FROM evenkeel.thread_metadata WHERE thread IN (SELECT id FROM gone)
    )
    DELETE FROM evenkeel.threads WHERE id IN (SELECT id FROM gone);
END $$;

-- Stores how many writes a counter has seen refused.
CREATE FUNCTION evenkeel.write_fenced(p_writer uuid, p_n bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO evenkeel.fenced (writer, n) VALUES (p_writer, p_n)
    ON CONFLICT (writer) DO UPDATE SET n = excluded.n;
END $$;
