-- A text that was encoded once in a workspace is not encoded again: its vectors are found by a hash of what the
-- encoder reads, in the index itself, so there is no second copy, and they are gone with the last chunk that has them.
set search_path = sherlock, public;

alter table knowledge_chunks
    add column if not exists digest bytea;   -- first 16 bytes of SHA-256; null: published before there was this column
create index if not exists knowledge_chunks_digest on knowledge_chunks (workspace_id, digest)
    where digest is not null;

insert into schema_migrations (name) values ('011_embedding_reuse') on conflict do nothing;
reset search_path;
