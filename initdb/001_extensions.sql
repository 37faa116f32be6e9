-- Extension, schema and the role the service connects as. Every file here may run twice: PostgreSQL's own image
-- runs them on an empty volume, `sherlock migrate` and every start on any database.
create extension if not exists vector;

create schema if not exists sherlock;

create table if not exists sherlock.schema_migrations (
    name       text primary key,
    applied_at timestamptz not null default now()
);

-- The service is neither superuser nor owner, so that row-level security can bite. `sherlock migrate` gives the
-- role its password and the right to log in; here it has neither.
do $$
begin
    create role sherlock_app nologin nosuperuser nocreatedb nocreaterole noinherit;
exception
    when duplicate_object or unique_violation then null;   -- roles belong to the cluster, not to this database
end
$$;

grant usage on schema sherlock to sherlock_app;
alter default privileges in schema sherlock grant select, insert, update, delete on tables to sherlock_app;
alter default privileges in schema sherlock grant usage, select on sequences to sherlock_app;
grant select on sherlock.schema_migrations to sherlock_app;
revoke insert, update, delete on sherlock.schema_migrations from sherlock_app;

insert into sherlock.schema_migrations (name) values ('001_extensions') on conflict do nothing;
