-- Outlast, schema 2.

-- What the workers of the file's runtime serve, as of the last claim of each; another runtime begins anew.
CREATE TABLE served (
    worker  TEXT NOT NULL,
    tool    TEXT NOT NULL,
    version TEXT NOT NULL,
    PRIMARY KEY (worker, tool, version)
) STRICT, WITHOUT ROWID;
