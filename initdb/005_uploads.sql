-- Uploads in parts, and what they put into the file store.
set search_path = sherlock, public;

create table if not exists uploads (
    workspace_id    text        not null references workspaces (id) on delete cascade,
    id              text        not null,
    filename        text        not null,
    purpose         text        not null,
    bytes           bigint      not null check (bytes >= 0),   -- as declared: the parts must add up to it
    expires_after_s int         check (expires_after_s > 0),   -- of the file, from its completion on
    status          text        not null default 'pending'     -- pending beyond expires_at: expired
                    check (status in ('pending', 'completed', 'cancelled')),
    part_ids        text[],            -- what it was completed with: the same request again has the same answer
    file_id         text,              -- null once more when the file has been deleted
    created_at      timestamptz not null,
    expires_at      timestamptz not null,
    primary key (workspace_id, id),
    foreign key (workspace_id, file_id) references knowledge_files (workspace_id, id)
        on delete set null (file_id),
    check ((status = 'completed') = (part_ids is not null)),
    check (file_id is null or status = 'completed')
);
create index if not exists uploads_file on uploads (workspace_id, file_id) where file_id is not null;
create index if not exists uploads_expiry on uploads (expires_at);

-- Objects of an upload in the file store: parts, and the file while it is put together from them. A row comes
-- before its bytes and goes after them, so nothing is left over that no row tells of, whoever is killed.
create table if not exists upload_objects (
    workspace_id text        not null,
    upload_id    text        not null,
    id           text        not null,
    bytes        bigint      check (bytes >= 0),               -- null until all of them are stored
    created_at   timestamptz not null default now(),
    primary key (workspace_id, id),
    foreign key (workspace_id, upload_id) references uploads (workspace_id, id) on delete cascade
);
create index if not exists upload_objects_upload on upload_objects (workspace_id, upload_id);

grant select, insert, update, delete on uploads, upload_objects to sherlock_app;

insert into schema_migrations (name) values ('005_uploads') on conflict do nothing;
reset search_path;
