-- How a file was read: the encoding its text was in, its pages, those without text.
set search_path = sherlock, public;

-- Written when an ingest is completed; null before, and where the file was read by an older version.
alter table vector_store_files add column if not exists reading_notes jsonb;

insert into schema_migrations (name) values ('015_reading_notes') on conflict do nothing;
reset search_path;
