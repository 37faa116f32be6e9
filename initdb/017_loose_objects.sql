-- Objects of the file store that belong to no file and no upload: not yet, or not any more.
set search_path = sherlock, public;

-- A row comes before the bytes, or in the transaction that deletes the file; it goes in the transaction that makes the
-- object a file's or a part's, or after the bytes. So nothing is stored that no row tells of, whoever is killed. What
-- is due is removed by the housekeeper. No foreign key: a workspace comes into being with its first file.
create table if not exists loose_objects (
    workspace_id text        not null,
    id           text        not null,
    due_at       timestamptz not null,                 -- who stores it moves this on; when to remove, or to try again
    going        boolean     not null default false,   -- somebody removes the bytes: it can become nothing any more
    primary key (workspace_id, id)
);
create index if not exists loose_objects_due on loose_objects (due_at);

grant select, insert, update, delete on loose_objects to sherlock_app;

insert into schema_migrations (name) values ('017_loose_objects') on conflict do nothing;
reset search_path;
