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
create index if not exists knowledge_files_page on knowledge_files (workspace_id, created_at, id);

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
    created_at         timestamptz not null default now(),
    last_active_at     timestamptz not null default now(),
    primary key (workspace_id, id)
);
create index if not exists vector_stores_page on vector_stores (workspace_id, created_at, id);

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
    on vector_store_files (workspace_id, vector_store_id, created_at, file_id);
create index if not exists vector_store_files_file on vector_store_files (workspace_id, file_id);
create index if not exists vector_store_files_file_no on vector_store_files (file_no);

grant select, insert, update, delete on workspaces, knowledge_files, vector_stores, vector_store_files to sherlock_app;

insert into schema_migrations (name) values ('002_catalog') on conflict do nothing;
reset search_path;
