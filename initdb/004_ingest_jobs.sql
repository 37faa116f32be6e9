-- The ingest queue. The row is the truth; NOTIFY on channel sherlock_ingest only says "look now".
set search_path = sherlock, public;

create table if not exists ingest_jobs (
    id              bigint generated always as identity primary key,
    workspace_id    text        not null,
    vector_store_id text        not null,
    file_id         text        not null,
    state           text        not null default 'waiting' check (state in ('waiting', 'running', 'done', 'failed')),
    attempt         int         not null default 0,      -- of the current or last claim, counted from 1; fences
    failures        int         not null default 0,      -- attempts that ended badly; a drained worker's does not count
    outage_since    timestamptz,                         -- first of the latest attempts that found something down
    run_after       timestamptz not null default now(),
    lease_owner     text,
    lease_until     timestamptz,
    error_code      text,
    error_message   text,
    created_at      timestamptz not null default now(),
    finished_at     timestamptz,
    foreign key (workspace_id, vector_store_id, file_id)
        references vector_store_files (workspace_id, vector_store_id, file_id) on delete cascade,
    check ((state = 'running') = (lease_owner is not null)),
    check ((lease_owner is null) = (lease_until is null))
);
-- A file is never ingested twice at once into a store.
create unique index if not exists ingest_jobs_active on ingest_jobs (workspace_id, vector_store_id, file_id)
    where state in ('waiting', 'running');
create index if not exists ingest_jobs_membership on ingest_jobs (workspace_id, vector_store_id, file_id);
create index if not exists ingest_jobs_due on ingest_jobs (run_after, id) where state = 'waiting';
create index if not exists ingest_jobs_leased on ingest_jobs (lease_until) where state = 'running';

-- Finished chunks of an unfinished job: kept through a kill, invisible to search, moved into the index in one
-- transaction by publish.
create table if not exists ingest_chunks (
    job_id      bigint  not null references ingest_jobs (id) on delete cascade,
    chunk_index int     not null,
    digest      bytea   not null,            -- SHA-256 of the content's UTF-8
    content     text    not null,
    char_start  int     not null,
    char_end    int     not null,
    page        int,
    heading     text,
    windows     halfvec[] not null,
    weights     sparsevec(536870912) not null,
    keys        int4[]  not null,
    primary key (job_id, chunk_index)
);

grant select, insert, update, delete on ingest_jobs, ingest_chunks to sherlock_app;

insert into schema_migrations (name) values ('004_ingest_jobs') on conflict do nothing;
reset search_path;
