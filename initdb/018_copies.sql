-- Copying a file's chunks between stores: who read it, and its parts side by side.
set search_path = sherlock, public;

-- Written when an ingest is completed; null before, and where an older version read the file.
alter table vector_store_files add column if not exists read_by text;

-- Vectors and hashes do not compress, and trying takes a tenth of what staging and publishing them does.
alter table ingest_chunks alter windows set storage external, alter weights set storage external,
    alter keys set storage external;

-- What each part of a file that is being published will add to term_df: 20 ms where a row for each term took 80, and
-- parts do not wait for each other's rows.
create table if not exists publishing_parts (
    store_no int   not null,
    file_no  int   not null,
    first    int   not null,     -- chunk_index of its first chunk
    keys     int[] not null,
    counts   int[] not null,
    primary key (store_no, file_no, first),
    foreign key (store_no, file_no) references publishing (store_no, file_no) on delete cascade
);
grant select, insert, update, delete on publishing_parts to sherlock_app;

insert into schema_migrations (name) values ('018_copies') on conflict do nothing;
reset search_path;
