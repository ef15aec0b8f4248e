-- Outlast, schema 1. Integers are milliseconds since 1970 where a name ends in `_at` or `until`; owners, tools and keys of
-- callers are digests, because the texts have no bound and may hold what PostgreSQL refuses in a text.

CREATE TABLE $S.outlast (
    name  text PRIMARY KEY,
    value bigint NOT NULL
);
-- The store's clock never runs back below this, whatever the database's does.
INSERT INTO $S.outlast VALUES ('clock', 0);

-- The order of creation, roughly: replicas draw from it before they commit.
CREATE SEQUENCE $S.numbers AS bigint;

-- What polling reads. Room in each page keeps a change that touches no index from touching one.
CREATE TABLE $S.tasks (
    number   bigint PRIMARY KEY,
    id       bytea NOT NULL UNIQUE,
    owner    bytea NOT NULL,
    tool     bytea NOT NULL,    -- the digest of its name and that of its version
    status   smallint NOT NULL, -- place in `Status::ALL`
    leased   boolean NOT NULL,
    running  boolean NOT NULL,
    ready_at bigint,
    due_at   bigint,
    revision bigint NOT NULL,
    asked    text COLLATE "C",  -- the keys of the outstanding questions, a line each
    value    text NOT NULL,     -- the task as JSON, without what is in `body` and `journal`
    body     text               -- how it ended: its result, or its error
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
CREATE INDEX tasks_by_status ON $S.tasks (status, number);
-- Quotas and limits are counted here: a row of numbers for each owner would be written by everyone at once.
CREATE INDEX tasks_by_owner ON $S.tasks (owner, status);
CREATE INDEX tasks_running ON $S.tasks (owner) WHERE running;
CREATE INDEX tasks_by_ready ON $S.tasks (ready_at, number) INCLUDE (owner, tool, status)
    WHERE NOT leased AND ready_at IS NOT NULL;
CREATE INDEX tasks_by_ready_owner ON $S.tasks (owner, ready_at, number) INCLUDE (tool, status)
    WHERE NOT leased AND ready_at IS NOT NULL;
-- Of a leased task, `ready_at` is the end of the lease.
CREATE INDEX tasks_by_lease ON $S.tasks (ready_at) WHERE leased;
CREATE INDEX tasks_by_due ON $S.tasks (due_at) WHERE due_at IS NOT NULL;

-- What a task was asked to do; read when a worker takes it up.
CREATE TABLE $S.calls (
    number  bigint PRIMARY KEY,
    params  text NOT NULL,
    context text,
    key     bytea
);

CREATE TABLE $S.journal (
    number bigint NOT NULL,
    seq    bigint NOT NULL,
    at     bigint NOT NULL,
    kind   text NOT NULL,
    key    text COLLATE "C",
    opens  boolean NOT NULL,    -- whether it is the entry that says what its key names
    body   text,
    PRIMARY KEY (number, seq)
);
CREATE UNIQUE INDEX journal_by_key ON $S.journal (number, key) WHERE opens;

-- Idempotency keys; one whose task is gone stays until `until` as a tombstone.
CREATE TABLE $S.keys (
    key     bytea PRIMARY KEY,
    caller  text NOT NULL,      -- the owner and the key as they are: a JSON array
    request bytea NOT NULL,
    id      bytea NOT NULL,
    until   bigint
);
CREATE INDEX keys_by_until ON $S.keys (until) WHERE until IS NOT NULL;

-- What each worker serves, as of its last claim: a JSON array of names and versions; and how many running tasks it lets one
-- owner have.
CREATE TABLE $S.served (
    worker  bytea PRIMARY KEY,
    serves  text NOT NULL,
    per_owner bigint NOT NULL,
    seen_at bigint NOT NULL
);
