"""The processes of a job: what they were told, their ranks, machines and groups, and how they
talk."""
