-- What a chunk needs so that a file's text can be put together again exactly, and a quote knows its own page.
set search_path = sherlock, public;

-- The blanks before a chunk that no chunk holds; empty in older rows, where line ends stand for them.
alter table ingest_chunks add column if not exists gap text not null default '';
alter table knowledge_chunks add column if not exists gap text not null default '';
-- Where in a chunk further pages begin: offset into the document's text and page, in turn.
alter table ingest_chunks add column if not exists page_breaks int[] not null default '{}';
alter table knowledge_chunks add column if not exists page_breaks int[] not null default '{}';

insert into schema_migrations (name) values ('013_content') on conflict do nothing;
reset search_path;
