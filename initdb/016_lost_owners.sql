-- Which counted attempts may be taken back, and which files hold chunks that were never completed.
set search_path = sherlock, public;

-- Owners whose lease of the job ran out, one counted failure each, until such an owner says that it lives.
alter table ingest_jobs add column if not exists lost_owners text[] not null default '{}';
create index if not exists ingest_jobs_lost on ingest_jobs (id)
    where lost_owners <> '{}' and state in ('waiting', 'running');

-- From publishing until the ingest is completed: if that ends otherwise, the file's chunks are to go.
alter table vector_store_files add column if not exists unconfirmed boolean not null default false;
create index if not exists vector_store_files_unconfirmed on vector_store_files (store_no, file_no)
    where unconfirmed and status in ('failed', 'cancelled');
-- Also those that are in progress and published already, or were published, ended badly and started over since.
update vector_store_files m set unconfirmed = true
where status <> 'completed' and exists (
    select from knowledge_chunks c where c.workspace_id = m.workspace_id
        and c.vector_store_id = m.vector_store_id and c.file_id = m.file_id);

insert into schema_migrations (name) values ('016_lost_owners') on conflict do nothing;
reset search_path;
