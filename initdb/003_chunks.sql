-- Chunks, and the narrow tables that search reads: a vector per window, keyword terms, document frequencies.
-- The narrow tables carry numbers instead of ids (a row stays small) and no policy of their own: they are read only
-- in statements that join knowledge_chunks.
set search_path = sherlock, public;

create table if not exists knowledge_chunks (
    id              bigint generated always as identity primary key,
    workspace_id    text not null,
    vector_store_id text not null,
    file_id         text not null,
    store_no        int  not null,
    file_no         int  not null,
    chunk_index     int  not null check (chunk_index >= 0),
    content         text not null,
    char_start      int  not null,
    char_end        int  not null,
    page            int,
    heading         text,
    -- Deferred, so that new chunks of a file may come before the former ones go.
    unique (workspace_id, vector_store_id, file_id, chunk_index) deferrable initially deferred,
    foreign key (workspace_id, vector_store_id, file_id)
        references vector_store_files (workspace_id, vector_store_id, file_id) on delete cascade
);

-- For quoted phrases. Virtual where the server can (18): no space, no cost at ingest. It needs no index: a phrase
-- goes through the term keys first, and few rows are left to look at.
do $$
begin
    if current_setting('server_version_num')::int >= 180000 then
        alter table knowledge_chunks add column if not exists fts_vector tsvector
            generated always as (to_tsvector('simple', content)) virtual;
    else
        alter table knowledge_chunks add column if not exists fts_vector tsvector
            generated always as (to_tsvector('simple', content)) stored;
    end if;
end
$$;

create table if not exists chunk_windows (
    chunk_id  bigint   not null references knowledge_chunks (id) on delete cascade,
    part      smallint not null,
    store_no  int      not null,
    file_no   int      not null,
    dim       smallint not null,
    embedding halfvec  not null,          -- length 1
    primary key (chunk_id, part)
);
alter table chunk_windows alter embedding set storage plain;
create index if not exists chunk_windows_file on chunk_windows (store_no, file_no);
-- One such index for each dimension in use; `sherlock migrate` makes it for an encoder of another dimension.
create index if not exists chunk_windows_384 on chunk_windows
    using hnsw ((embedding::halfvec(384)) halfvec_ip_ops) where dim = 384;

create table if not exists chunk_terms (
    chunk_id bigint               primary key references knowledge_chunks (id) on delete cascade,
    store_no int                  not null,
    file_no  int                  not null,
    weights  sparsevec(536870912) not null,   -- BM25's term part, by 29-bit term
    keys     int4[]               not null    -- 32-bit hashes of (store_no, term)
);
alter table chunk_terms alter weights set storage main, alter keys set storage main;
create index if not exists chunk_terms_keys on chunk_terms using gin (keys) with (gin_pending_list_limit = 256);
create index if not exists chunk_terms_file on chunk_terms (store_no, file_no);

create table if not exists term_df (
    store_no int  not null references vector_stores (store_no) on delete cascade,
    key      int4 not null,
    df       int  not null,
    primary key (store_no, key)
) with (fillfactor = 70);

-- However a membership goes (detached, its file or store deleted, by hand), its terms leave the document
-- frequencies in the same transaction. A store's own frequencies go with the store, so then there is nothing to do.
create or replace function forget_terms() returns trigger language plpgsql
set search_path = sherlock, public as $$
begin
    if not exists (select from vector_stores where store_no = old.store_no) then
        return old;
    end if;
    with gone as (
        delete from chunk_terms where store_no = old.store_no and file_no = old.file_no returning keys
    ), counted as (
        select k as key, count(*)::int as df from gone, unnest(keys) k group by k
    ), locked as (      -- in key order, like every other writer, so that two of them cannot deadlock
        select t.key from term_df t join counted c using (key) where t.store_no = old.store_no
        order by t.key for update of t
    )
    update term_df t set df = t.df - c.df
    from locked l join counted c using (key)
    where t.store_no = old.store_no and t.key = l.key;
    return old;
end
$$;
create or replace trigger forget_terms before delete on vector_store_files
    for each row execute function forget_terms();

grant select, insert, update, delete on knowledge_chunks, chunk_windows, chunk_terms, term_df to sherlock_app;

insert into schema_migrations (name) values ('003_chunks') on conflict do nothing;
reset search_path;
