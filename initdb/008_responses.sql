-- Responses of /v1/responses, and the items they were made from and consist of. The columns of type json hold any
-- text, NUL and lone surrogates included, since it stays escaped; nothing looks into them here, and jsonb could not.
set search_path = sherlock, public;

create table if not exists responses (
    workspace_id text        not null references workspaces (id) on delete cascade,
    id           text        not null,
    previous_id  text,                     -- no foreign key: one may be deleted and those after it stay
    thread_id    text        not null,     -- id of the first response of the conversation
    bytes        bigint      not null check (bytes >= 0),   -- of the items that later turns are built on
    body         json        not null,     -- as the API shows it, without its output
    created_at   timestamptz not null default now(),
    primary key (workspace_id, id)
);
-- A conversation is kept as long as its latest response.
create index if not exists responses_thread on responses (workspace_id, thread_id, created_at);
create index if not exists responses_age on responses (created_at);

create table if not exists response_items (
    workspace_id text    not null,
    response_id  text    not null,
    position     int     not null,         -- input first, then output
    output       boolean not null,
    id           text    not null,         -- a client may send an item again, so it names one only within a response
    type         text    not null,
    item         json    not null,
    primary key (workspace_id, response_id, position),
    foreign key (workspace_id, response_id) references responses (workspace_id, id) on delete cascade
);
create index if not exists response_items_id on response_items (workspace_id, id);

grant select, insert, update, delete on responses, response_items to sherlock_app;

insert into schema_migrations (name) values ('008_responses') on conflict do nothing;
reset search_path;
