-- Ingest requests that came as messages: kept until their result was published, and a day longer, so that a message
-- which is delivered again is known. Nothing but the workspace is referenced: a result is owed, too, when the file or
-- the store has gone meanwhile. Lock order: membership before request.
set search_path = sherlock, public;

create table if not exists ingest_requests (
    id              bigint generated always as identity primary key,
    workspace_id    text        not null references workspaces (id) on delete cascade,
    message_id      text        not null,                -- the same at every delivery of the message
    request_id      text        not null,                -- the caller's, echoed in the result
    vector_store_id text        not null,
    file_id         text        not null,
    reply_to        text,                                -- a subject that gets the result, too
    claimed_until   timestamptz,                         -- somebody is publishing the result
    published_at    timestamptz,
    created_at      timestamptz not null default now(),
    unique (workspace_id, message_id)
);
create index if not exists ingest_requests_open on ingest_requests (workspace_id, vector_store_id, file_id)
    where published_at is null;
create index if not exists ingest_requests_published on ingest_requests (published_at) where published_at is not null;

-- However an ingest ends (completed, failed, cancelled, its file or store deleted), those who owe a result are told.
create or replace function tell_ingest_ended() returns trigger language plpgsql
set search_path = sherlock, public as $$
begin
    if exists (
        select from ingest_requests r
        where r.published_at is null and r.workspace_id = old.workspace_id
          and r.vector_store_id = old.vector_store_id and r.file_id = old.file_id
    ) then
        perform pg_notify('sherlock_ingest_ended', '');
    end if;
    return null;
end
$$;
create or replace trigger tell_ended after update of status on vector_store_files
    for each row when (old.status = 'in_progress' and new.status <> 'in_progress')
    execute function tell_ingest_ended();
create or replace trigger tell_deleted after delete on vector_store_files
    for each row when (old.status = 'in_progress')
    execute function tell_ingest_ended();

grant select, insert, update, delete on ingest_requests to sherlock_app;

insert into schema_migrations (name) values ('009_ingest_requests') on conflict do nothing;
reset search_path;
