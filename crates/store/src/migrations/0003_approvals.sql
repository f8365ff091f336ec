-- What a person is asked while a run waits for it.

ALTER TABLE runs ADD COLUMN wait_approvals TEXT;                    -- JSON; null for no question
ALTER TABLE threads ADD COLUMN asks INTEGER NOT NULL DEFAULT 0;     -- 1: its active run waits for a person
