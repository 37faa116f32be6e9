-- Files, vector stores, and which file stands in which store. Ids belong to a workspace: keys and foreign keys
-- carry it, so no row can point at another tenant's.
set search_path = sherlock, public;

create table if not exists workspaces (
    id         text primary key,
    created_at timestamptz not null default now()
);
insert into workspaces (id) values ('default') on conflict do nothing;

create table if not exists knowledge_files (
    workspace_id text        not null references workspaces (id) on delete cascade,
    id           text        not null,
    file_no      int         not null generated always as identity unique,   -- for the narrow tables of 003
    filename     text        not null,
    purpose      text        not null,
    bytes        bigint      not null check (bytes >= 0),
    sha256       text        not null,
    created_at   timestamptz not null default now(),
    expires_at   timestamptz,
    primary key (workspace_id, id)
);
create index if not exists knowledge_files_page on knowledge_files (workspace_id, created_at, file_no);

create table if not exists vector_stores (
    workspace_id       text        not null references workspaces (id) on delete cascade,
    id                 text        not null,
    store_no           int         not null generated always as identity unique,
    name               text        not null default '',
    description        text,
    metadata           jsonb,
    encoder            text        not null,      -- a store is pinned to its encoder
    dimension          smallint    not null check (dimension between 1 and 4000),
    expires_after_days int         check (expires_after_days between 1 and 365),
    file_count         int         not null default 0 check (file_count >= 0),   -- whatever their status
    created_at         timestamptz not null default now(),
    last_active_at     timestamptz not null default now(),
    primary key (workspace_id, id)
);
create index if not exists vector_stores_page on vector_stores (workspace_id, created_at, store_no);

create table if not exists vector_store_files (
    workspace_id          text        not null,
    vector_store_id       text        not null,
    file_id               text        not null,
    store_no              int         not null references vector_stores (store_no) on delete cascade,
    file_no               int         not null references knowledge_files (file_no) on delete cascade,
    status                text        not null default 'in_progress'
                          check (status in ('in_progress', 'completed', 'cancelled', 'failed')),
    error_code            text        check (error_code in ('server_error', 'unsupported_file', 'invalid_file')),
    error_message         text,
    attributes            jsonb,
    max_chunk_size_tokens int         not null,
    chunk_overlap_tokens  int         not null,
    chunk_count           int         not null default 0,
    window_count          int         not null default 0,
    usage_bytes           bigint      not null default 0,
    created_at            timestamptz not null default now(),
    primary key (workspace_id, vector_store_id, file_id),
    unique (store_no, file_no),
    foreign key (workspace_id, vector_store_id) references vector_stores (workspace_id, id) on delete cascade,
    foreign key (workspace_id, file_id) references knowledge_files (workspace_id, id) on delete cascade,
    check ((status = 'failed') = (error_code is not null)),
    check ((error_code is null) = (error_message is null))
);
create index if not exists vector_store_files_page
    on vector_store_files (workspace_id, vector_store_id, created_at, file_no);
create index if not exists vector_store_files_file on vector_store_files (workspace_id, file_id);
create index if not exists vector_store_files_file_no on vector_store_files (file_no);
-- Every search sums the sizes of its stores.
create index if not exists vector_store_files_sizes
    on vector_store_files (store_no) include (file_no, status, chunk_count, window_count) where chunk_count > 0;

-- However a membership comes or goes, its store's file_count follows in the same transaction. Stores are locked in
-- order of store_no, so that two statements cannot deadlock; one that is just being deleted is no longer there.
create or replace function count_files() returns trigger language plpgsql
set search_path = sherlock, public as $$
begin
    with counted as (
        select store_no, case tg_op when 'INSERT' then count(*) else -count(*) end as step
        from changed group by store_no
    ), locked as (
        select s.store_no from vector_stores s join counted using (store_no)
        order by s.store_no for no key update of s
    )
    update vector_stores s set file_count = s.file_count + c.step
    from locked l join counted c using (store_no)
    where s.store_no = l.store_no;
    return null;
end
$$;
create or replace trigger count_attached after insert on vector_store_files
    referencing new table as changed for each statement execute function count_files();
create or replace trigger count_detached after delete on vector_store_files
    referencing old table as changed for each statement execute function count_files();

grant select, insert, update, delete on workspaces, knowledge_files, vector_stores, vector_store_files to sherlock_app;

insert into schema_migrations (name) values ('002_catalog') on conflict do nothing;
reset search_path;
