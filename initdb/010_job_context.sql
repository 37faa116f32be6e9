-- Which request an ingest job came from, so that its logs and spans join that request's; and how long its stages took.
set search_path = sherlock, public;

alter table ingest_jobs
    add column if not exists request_id text,
    add column if not exists traceparent text,           -- W3C Trace Context
    add column if not exists stage_ms jsonb;             -- of the attempt that completed it: stage -> milliseconds
alter table ingest_requests
    add column if not exists traceparent text;           -- for the result, which is sent long after the request

-- The jobs completed last.
create index if not exists ingest_jobs_finished on ingest_jobs (finished_at) where state = 'done';

insert into schema_migrations (name) values ('010_job_context') on conflict do nothing;
reset search_path;
