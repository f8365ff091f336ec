-- The reads by key of the hot path, as functions for the same reason as the parts of a write. Each
-- takes what is asked for as columns and answers with its place in them, `ord`, where that is needed.
-- What hangs on a row is read row by row.

CREATE FUNCTION evenkeel.read_threads(p_id uuid[], p_tenant text[])
RETURNS TABLE (ord bigint, rev bigint, places bigint, row_json text, is_taken boolean)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT q.ord, own.rev, own.places, own.row, x.id IS NOT NULL
    FROM unnest(p_id, p_tenant) WITH ORDINALITY q(id, tenant, ord)
    LEFT JOIN evenkeel.threads x ON x.id = q.id
    LEFT JOIN evenkeel.threads own ON own.id = q.id AND own.tenant = q.tenant;
END $$;

CREATE FUNCTION evenkeel.read_open(p_thread uuid[])
RETURNS TABLE (
    place bigint, hidden boolean, row_json text, spec text, spec_size bigint, spec_packed boolean,
    spec_bytes bytea, outcome text, outcome_size bigint, outcome_packed boolean, outcome_bytes bytea
)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT r.place, r.hidden, r.row, s.body, sb.size, sb.packed, sb.bytes,
        r.outcome, ob.size, ob.packed, ob.bytes
    FROM unnest(p_thread) q(thread)
    JOIN evenkeel.open_runs o ON o.thread = q.thread
    JOIN evenkeel.runs r ON r.id = o.run
    LEFT JOIN evenkeel.run_specs s ON s.run = r.id
    LEFT JOIN evenkeel.blobs sb ON sb.id = s.blob
    LEFT JOIN evenkeel.blobs ob ON ob.id = r.outcome_blob;
END $$;

CREATE FUNCTION evenkeel.read_runs(p_id uuid[], p_tenant text[])
RETURNS TABLE (
    place bigint, hidden boolean, row_json text, spec text, spec_size bigint, spec_packed boolean,
    spec_bytes bytea, outcome text, outcome_size bigint, outcome_packed boolean, outcome_bytes bytea,
    rev bigint, places bigint, thread_json text, ord bigint, is_taken boolean
)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT r.place, r.hidden, r.row, s.body, sb.size, sb.packed, sb.bytes,
        r.outcome, ob.size, ob.packed, ob.bytes, t.rev, t.places, t.row, q.ord,
        x.id IS NOT NULL OR w.id IS NOT NULL
    FROM unnest(p_id, p_tenant) WITH ORDINALITY q(id, tenant, ord)
    LEFT JOIN evenkeel.runs x ON x.id = q.id
    LEFT JOIN evenkeel.writers w ON w.id = q.id
    LEFT JOIN evenkeel.runs r ON r.id = q.id AND (q.tenant IS NULL OR r.tenant = q.tenant)
    LEFT JOIN evenkeel.threads t ON t.id = r.thread
    LEFT JOIN evenkeel.run_specs s ON s.run = r.id
    LEFT JOIN evenkeel.blobs sb ON sb.id = s.blob
    LEFT JOIN evenkeel.blobs ob ON ob.id = r.outcome_blob;
END $$;

CREATE FUNCTION evenkeel.read_events(p_thread uuid[], p_after bigint[], p_n bigint[])
RETURNS TABLE (
    ord bigint, thread uuid, seq bigint, run uuid, step bigint, at bigint, body text, size bigint,
    packed boolean, bytes bytea
)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT q.ord, e.thread, e.seq, e.run, e.step, e.at, e.body, b.size, b.packed, b.bytes
    FROM unnest(p_thread, p_after, p_n) WITH ORDINALITY q(thread, after, n, ord)
    CROSS JOIN LATERAL (
        SELECT * FROM evenkeel.events e WHERE e.thread = q.thread AND e.seq > q.after
        ORDER BY e.seq LIMIT q.n
    ) e
    LEFT JOIN evenkeel.blobs b ON b.id = e.blob
    ORDER BY q.ord, e.seq;
END $$;

CREATE FUNCTION evenkeel.read_keys(p_tenant text[], p_scope uuid[], p_key bytea[])
RETURNS TABLE (ord bigint, run uuid)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT q.ord, k.run
    FROM unnest(p_tenant, p_scope, p_key) WITH ORDINALITY q(tenant, scope, key, ord)
    JOIN evenkeel.idempotency_keys k ON k.tenant = q.tenant AND k.scope = q.scope AND k.key = q.key;
END $$;

CREATE FUNCTION evenkeel.read_messages(p_thread uuid[], p_message bytea[])
RETURNS TABLE (ord bigint, run uuid)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT q.ord, m.run
    FROM unnest(p_thread, p_message) WITH ORDINALITY q(thread, message, ord)
    JOIN evenkeel.accepted_messages m ON m.thread = q.thread AND m.message = q.message;
END $$;
