-- A large file is published in parts: its chunks go into the tables of 003 in many transactions, and are shown by the
-- last one. Nothing of a (store, file) that stands in `publishing` is found by any search.
set search_path = sherlock, public;

create table if not exists publishing (
    store_no int    not null,
    file_no  int    not null,
    job_id   bigint not null,   -- of the job that publishes; what one that has ended left behind is cleared away
    primary key (store_no, file_no),
    foreign key (store_no, file_no) references vector_store_files (store_no, file_no) on delete cascade
);

-- What its chunks will add to term_df.
create table if not exists publishing_terms (
    store_no int  not null,
    file_no  int  not null,
    key      int4 not null,
    df       int  not null,
    primary key (store_no, file_no, key),
    foreign key (store_no, file_no) references publishing (store_no, file_no) on delete cascade
);

-- As in 003, but for a file that is being published: its terms are not counted yet.
create or replace function forget_terms() returns trigger language plpgsql
set search_path = sherlock, public as $$
begin
    if not exists (select from vector_stores where store_no = old.store_no)
       or exists (select from publishing where store_no = old.store_no and file_no = old.file_no) then
        return old;
    end if;
    with gone as (
        delete from chunk_terms where store_no = old.store_no and file_no = old.file_no returning keys
    ), counted as (
        select k as key, count(*)::int as df from gone, unnest(keys) k group by k
    ), locked as (
        select t.key from term_df t join counted c using (key) where t.store_no = old.store_no
        order by t.key for update of t
    )
    update term_df t set df = t.df - c.df
    from locked l join counted c using (key)
    where t.store_no = old.store_no and t.key = l.key;
    return old;
end
$$;

grant select, insert, update, delete on publishing, publishing_terms to sherlock_app;

insert into schema_migrations (name) values ('012_publishing') on conflict do nothing;
reset search_path;
