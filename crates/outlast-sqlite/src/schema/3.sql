-- Outlast, schema 3.

-- How many running tasks each of those workers lets one owner have.
CREATE TABLE workers (
    worker    TEXT PRIMARY KEY,
    per_owner INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
