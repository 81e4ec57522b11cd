"""The processes of a job: their environment, ranks, machines and groups, and how they
talk."""
