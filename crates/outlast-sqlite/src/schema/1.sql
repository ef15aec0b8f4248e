-- Outlast, schema 1. Integers are milliseconds since 1970 where a name ends in `_at` or `until`.

-- The store's clock never runs back below this, whatever the machine's does.
CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO meta VALUES ('clock', 0);

CREATE TABLE tools (
    tool    INTEGER PRIMARY KEY,
    name    TEXT NOT NULL,
    version TEXT NOT NULL,
    UNIQUE (name, version)
) STRICT;

-- An owner that has tasks, and how many: quotas, fairness and counts are answered from here, without a scan.
CREATE TABLE owners (
    owner          INTEGER PRIMARY KEY,
    name           TEXT NOT NULL UNIQUE,
    working        INTEGER NOT NULL DEFAULT 0,
    input_required INTEGER NOT NULL DEFAULT 0,
    completed      INTEGER NOT NULL DEFAULT 0,
    failed         INTEGER NOT NULL DEFAULT 0,
    cancelled      INTEGER NOT NULL DEFAULT 0,
    leased         INTEGER NOT NULL DEFAULT 0,
    running        INTEGER NOT NULL DEFAULT 0,
    -- Never later than the earliest `ready_at` of its unleased tasks; a claim that finds it too early corrects it.
    ready_from     INTEGER
) STRICT;
CREATE INDEX owners_by_ready ON owners (ready_from) WHERE ready_from IS NOT NULL;

-- What polling reads. `number` is the order of creation, so that new rows lie together; `id` is random.
CREATE TABLE tasks (
    number   INTEGER PRIMARY KEY,
    id       BLOB NOT NULL UNIQUE,
    owner    INTEGER NOT NULL,
    tool     INTEGER NOT NULL,
    status   INTEGER NOT NULL, -- place in `Status::ALL`
    leased   INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    ready_at INTEGER,
    due_at   INTEGER,
    value    TEXT NOT NULL     -- the task as JSON, without what is in `bodies` and `journal`
) STRICT;
CREATE INDEX tasks_by_owner ON tasks (owner);
CREATE INDEX tasks_by_status ON tasks (status);
CREATE INDEX tasks_by_ready ON tasks (owner, ready_at, number, tool) WHERE ready_at IS NOT NULL AND leased = 0;
-- Of a leased task, `ready_at` is the end of the lease.
CREATE INDEX tasks_by_lease ON tasks (ready_at) WHERE leased = 1;
CREATE INDEX tasks_by_due ON tasks (due_at) WHERE due_at IS NOT NULL;

-- What a task was asked to do; read when a worker takes it up.
CREATE TABLE calls (
    number  INTEGER PRIMARY KEY,
    params  TEXT NOT NULL,
    context TEXT,
    key     TEXT
) STRICT;

-- How a task ended: its result, or the message and the data of its error.
CREATE TABLE bodies (
    number INTEGER PRIMARY KEY,
    body   TEXT NOT NULL,
    data   TEXT
) STRICT;

CREATE TABLE journal (
    entry  INTEGER PRIMARY KEY,
    number INTEGER NOT NULL,
    seq    INTEGER NOT NULL,
    at     INTEGER NOT NULL,
    kind   TEXT NOT NULL,
    key    TEXT,
    opens  INTEGER NOT NULL,   -- whether it is the entry that says what its key names
    body   TEXT
) STRICT;
CREATE UNIQUE INDEX journal_by_seq ON journal (number, seq);
CREATE UNIQUE INDEX journal_by_key ON journal (number, key) WHERE opens = 1;

-- Idempotency keys; one whose task is gone stays until `until` as a tombstone.
CREATE TABLE keys (
    entry   INTEGER PRIMARY KEY,
    owner   TEXT NOT NULL,
    key     TEXT NOT NULL,
    request BLOB NOT NULL,
    id      BLOB NOT NULL,
    until   INTEGER,
    UNIQUE (owner, key)
) STRICT;
CREATE INDEX keys_by_until ON keys (until) WHERE until IS NOT NULL;

-- The last changes that somebody may follow, for the other processes on this file.
CREATE TABLE changes (
    change INTEGER PRIMARY KEY,
    id     BLOB NOT NULL
) STRICT;
