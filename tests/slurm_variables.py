"""What Slurm 22.05 sets for a task, as it was seen: the last of four, on two nodes."""

JOB = {
    "SLURM_JOB_ID": "12",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_JOB_NODELIST": "host[0-1]",
    "SLURM_NTASKS": "4",
    "SLURM_CPUS_ON_NODE": "2",
    # Those of the batch script itself, too:
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
}
TASK = {
    **JOB,
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "host[0-1]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
}
ALONE = {
    **TASK,
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_STEP_NODELIST": "host0",
    "SLURM_STEP_TASKS_PER_NODE": "1",
}
