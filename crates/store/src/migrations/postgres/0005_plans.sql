-- How the plans of writes and reads are made: once, for any values, and never by reading a whole table.
-- A plan that does would be chosen while the tables are small, and kept. A deletion is planned anew.
DO $$
DECLARE
    f regprocedure;
BEGIN
    FOR f IN
        SELECT p.oid::regprocedure FROM pg_proc p JOIN pg_namespace s ON s.oid = p.pronamespace
        WHERE s.nspname = 'evenkeel' AND p.proname ~ '^(read|write)_' AND p.proname <> 'write_deletions'
    LOOP
        EXECUTE format(
            'ALTER FUNCTION %s SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off '
            'SET plan_cache_mode = force_generic_plan', f);
    END LOOP;
END $$;
