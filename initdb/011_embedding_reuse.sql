-- Vectors are reused; file store and records are compared; stores are deleted faster.
set search_path = sherlock, public;

-- ── vectors by what was encoded ──

-- A text that was encoded once in a workspace is not encoded again: its vectors are found by a hash of what the
-- encoder reads, in the index itself, so there is no second copy, and they are gone with the last chunk that has them.

alter table knowledge_chunks
    add column if not exists digest bytea;   -- first 16 bytes of SHA-256; null: published before there was this column
create index if not exists knowledge_chunks_digest on knowledge_chunks (workspace_id, digest)
    where digest is not null;

-- ── reconciliation ──

-- When the file store was last compared with the records, and what came of it; one row. Of the whole service and not
-- of a workspace: it says when workers look, and counts.
create table if not exists reconciliation (
    one                   boolean     primary key default true check (one),
    begun_at              timestamptz not null default now(),
    ended_at              timestamptz,                        -- of the last one that came to an end
    bytes_without_record  int         not null default 0 check (bytes_without_record >= 0),
    records_without_bytes int         not null default 0 check (records_without_bytes >= 0)
);
grant select, insert, update, delete on reconciliation to sherlock_app;

-- ── deleting a store with many files ──

-- Those who owe a result are told once for a statement, as for a single file before: a look for each row was a
-- quarter of what deleting a store with 100,000 queued files took.
create or replace function tell_deleted() returns trigger language plpgsql
set search_path = sherlock, public as $$
begin
    if exists (
        select from gone g
        join ingest_requests r on r.published_at is null and r.workspace_id = g.workspace_id
             and r.vector_store_id = g.vector_store_id and r.file_id = g.file_id
        where g.status = 'in_progress'
    ) then
        perform pg_notify('sherlock_ingest_ended', '');
    end if;
    return null;
end
$$;
create or replace trigger tell_deleted after delete on vector_store_files
    referencing old table as gone for each statement execute function tell_deleted();

insert into schema_migrations (name) values ('011_embedding_reuse') on conflict do nothing;
reset search_path;
