-- Expiry of files and vector stores.
set search_path = sherlock, public;

-- When a store was found to have expired. From then on it is, whatever becomes of last_active_at.
alter table vector_stores add column if not exists expired_at timestamptz;

-- What may expire, what has expired. last_active_at and file_count are in none of them: they change all the time,
-- and an index on them would have to follow.
create index if not exists knowledge_files_expiry on knowledge_files (expires_at) where expires_at is not null;
create index if not exists vector_stores_expiring on vector_stores (store_no)
    where expires_after_days is not null and expired_at is null;
create index if not exists vector_stores_expired on vector_stores (store_no) where expired_at is not null;

insert into schema_migrations (name) values ('006_expiry') on conflict do nothing;
reset search_path;
