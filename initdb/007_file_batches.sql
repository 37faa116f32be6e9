-- File batches, the end of a job by cancellation, and the order in which jobs are claimed.
set search_path = sherlock, public;

-- ── file batches ──

create table if not exists file_batches (
    workspace_id    text        not null,
    id              text        not null,
    vector_store_id text        not null,
    created_at      timestamptz not null default now(),
    cancelled_at    timestamptz,
    primary key (workspace_id, id),
    foreign key (workspace_id, vector_store_id) references vector_stores (workspace_id, id) on delete cascade
);
create index if not exists file_batches_store on file_batches (workspace_id, vector_store_id);

-- How a batch stands is counted from its memberships. One that is attached anew after it had ended belongs to
-- nobody's batch any more: the batch remembers how it ended, and does not begin again.
create table if not exists file_batch_files (
    workspace_id    text not null,
    vector_store_id text not null,
    batch_id        text not null,
    file_id         text not null,
    ended           text check (ended in ('failed', 'cancelled')),
    primary key (workspace_id, batch_id, file_id),
    foreign key (workspace_id, batch_id) references file_batches (workspace_id, id) on delete cascade,
    foreign key (workspace_id, vector_store_id, file_id)
        references vector_store_files (workspace_id, vector_store_id, file_id) on delete cascade
);
create index if not exists file_batch_files_membership
    on file_batch_files (workspace_id, vector_store_id, file_id);

grant select, insert, update, delete on file_batches, file_batch_files to sherlock_app;

-- ── jobs ──

alter table ingest_jobs
    add column if not exists size_class smallint not null default 0,   -- 0: a few pages, 1: up to 2 MiB, 2: larger
    add column if not exists turn bigint not null default 0,           -- jobs are claimed in this order
    drop constraint if exists ingest_jobs_state_check,
    add constraint ingest_jobs_state_check
        check (state in ('waiting', 'running', 'done', 'failed', 'cancelled'));

-- What a claim walks; it replaces the order of arrival.
create index if not exists ingest_jobs_turn on ingest_jobs (turn, id) where state = 'waiting';
drop index if exists ingest_jobs_due;
-- The last turn of a workspace's waiting jobs of a size, and the furthest turn that was ever claimed: from these
-- a new job's turn is made.
create index if not exists ingest_jobs_last_turn on ingest_jobs (workspace_id, size_class, turn)
    where state = 'waiting';
create index if not exists ingest_jobs_clock on ingest_jobs (turn) where attempt > 0;

insert into schema_migrations (name) values ('007_file_batches') on conflict do nothing;
reset search_path;
