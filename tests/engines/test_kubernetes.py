"""The manifests in examples/kubernetes: valid by the models of Kubernetes, JobSet and Kubeflow
Trainer, and run by two processes each with the variables that their pods have.

(There is no cluster. What the controllers do with an exit status is read from the manifest.)
"""

import importlib.util
import re
import subprocess
import sys
import time

import psutil
import pytest
import yaml
from engine_helpers import NUM_STEPS, ROOT, SECRET, TRAIN, digest, free_port, resumed_after, words_of

from lockstep._base.stopping import AUDIT_STATUS, REQUEUE_STATUS

FOLDER = ROOT / "examples" / "kubernetes"
MANIFESTS = {path.stem: list(yaml.safe_load_all(path.read_text())) for path in sorted(FOLDER.glob("*.yaml"))}
PAGE = (ROOT / "docs" / "how-to" / "kubernetes.md").read_text()
MODELS = {
    "Service": "IoK8sApiCoreV1Service",
    "PersistentVolumeClaim": "IoK8sApiCoreV1PersistentVolumeClaim",
    "Job": "IoK8sApiBatchV1Job",
    "JobSet": "JobsetV1alpha2JobSet",
    "TrainingRuntime": "TrainerV1alpha1TrainingRuntime",
    "TrainJob": "TrainerV1alpha1TrainJob",
}
INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


@pytest.fixture
def read(require):
    """``read(document)``: the document as its model has read it."""
    is_missing = importlib.util.find_spec("kubeflow_trainer_api") is None
    require("kubeflow", "kubeflow-trainer-api is not installed" if is_missing else None)
    import kubeflow_trainer_api.models as models

    return lambda document: getattr(models, MODELS[document["kind"]]).from_dict(document).to_dict()


def find(kind):
    [found] = [document for documents in MANIFESTS.values() for document in documents if document["kind"] == kind]
    return found


def job_of(name):
    """The Job that makes the pods."""
    if name == "job":
        return find("Job")["spec"]
    holder = find("JobSet") if name == "jobset" else find("TrainingRuntime")["spec"]["template"]
    [replicated] = holder["spec"]["replicatedJobs"]
    return replicated["template"]["spec"]


def container_of(name):
    [container] = job_of(name)["template"]["spec"]["containers"]
    return {**container, **find("TrainJob")["spec"]["trainer"]} if name == "trainjob" else container


def variables(name, index):
    """The environment of a pod: by the manifest, and in a TrainJob by its operator, too."""
    found = {}
    for entry in container_of(name)["env"]:
        source = entry.get("valueFrom", {})
        if "secretKeyRef" in source:
            found[entry["name"]] = SECRET
        elif "fieldRef" in source:
            assert source["fieldRef"]["fieldPath"] == INDEX
            found[entry["name"]] = str(index)
        else:
            found[entry["name"]] = entry["value"]
    if name == "trainjob":
        job, trainer = find("TrainJob")["metadata"]["name"], find("TrainJob")["spec"]["trainer"]
        found |= {
            "PET_NNODES": str(trainer["numNodes"]),
            "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"]),
            "PET_NODE_RANK": str(index),
            "PET_MASTER_ADDR": f"{job}-node-0-0.{job}",
            "PET_MASTER_PORT": "29500",
        }
    return found


def consequence(name, status):
    """What the job controller does when a container ends with this status: the number and action of
    the first rule that matches; None: it is a failure."""
    for number, rule in enumerate(job_of(name)["podFailurePolicy"]["rules"]):
        on_status = rule.get("onExitCodes")
        if on_status and status in on_status["values"]:
            assert (on_status["operator"], on_status["containerName"]) == ("In", container_of(name)["name"])
            return number, rule["action"]
    return None


def consequence_for_set(name, message):
    """What JobSet does when its job has failed by a rule of podFailurePolicy."""
    holder = find("JobSet") if name == "jobset" else find("TrainingRuntime")["spec"]["template"]
    for rule in holder["spec"]["failurePolicy"]["rules"]:
        assert rule["onJobFailureReasons"] == ["PodFailurePolicy"]
        patterns = rule.get("onJobFailureMessagePatterns", [""])
        if any(re.search(pattern, message) for pattern in patterns):
            return rule["action"]
    return None


@pytest.mark.parametrize("kind", MODELS)
def test_a_manifest_is_read_whole_by_its_model(kind, read):
    document = find(kind)
    assert read(document) == document


def test_an_unknown_field_and_a_wrong_type_are_found(read):
    job = find("Job")
    unknown = {**job, "spec": {**job["spec"], "backofLimit": 3}}
    assert read(unknown) != unknown
    with pytest.raises(ValueError, match="backoffLimit"):
        read({**job, "spec": {**job["spec"], "backoffLimit": "3"}})


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_has_what_the_page_explains(name):
    pod, container = job_of(name)["template"]["spec"], container_of(name)
    assert container["command"][:3] == ["lockstep", "run", "--run-dir"]  # no shell as PID 1
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory"
    claim = volumes[mounts["/runs"]]["persistentVolumeClaim"]["claimName"]
    assert (claim, ["ReadWriteMany"]) == (
        find("PersistentVolumeClaim")["metadata"]["name"],
        find("PersistentVolumeClaim")["spec"]["accessModes"],
    )
    assert container["command"][3].startswith("/runs/")
    assert pod["restartPolicy"] == "Never"  # podFailurePolicy is refused otherwise
    assert pod["terminationGracePeriodSeconds"] > 30
    assert f"`examples/kubernetes/{name}.yaml`" in PAGE


@pytest.mark.parametrize("name", MANIFESTS)
def test_statuses_have_the_consequences_that_the_page_names(name):
    saved, audit = consequence(name, REQUEUE_STATUS), consequence(name, AUDIT_STATUS)
    assert consequence(name, 1) is None
    if name == "job":
        assert (saved[1], audit[1]) == ("Ignore", "FailJob")
        return
    message = "Container node for pod default/train-0 failed with exit code {} matching FailJob rule at index {}"
    assert consequence_for_set(name, message.format(75, saved[0])) == "RestartJobSetAndIgnoreMaxRestarts"
    assert consequence_for_set(name, message.format(76, audit[0])) == "FailJobSet"
    assert job_of(name)["backoffLimit"] == 0


@pytest.fixture
def start_both(pods, tmp_path):
    """``start_both(name)``: both pods of a manifest, with its volumes in the test's directory."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "train.py").write_text(TRAIN)
    port = str(free_port())  # each pod has its own ports; here they share those of one machine

    def start(name):
        words, is_python = words_of(container_of(name)["command"])
        words = [re.sub("^(?=/runs/|/app/)", str(tmp_path), word) for word in words]
        assert words[1] == str(tmp_path / "runs" / "train")
        assert not is_python
        started = []
        for index in range(2):
            env = variables(name, index)
            assert env["PET_MASTER_PORT"] == "29500"
            started.append(pods.start(index, words, {**env, "PET_MASTER_PORT": port}))
        return started

    return start


def drain(_, second):
    """SIGTERM to one pod."""
    second.terminate()
    return 75, 75


def lose_and_delete(first, second):
    """A node is lost, and JobSet deletes the other pod."""
    second.kill()
    first.terminate()
    return None, -9


def lose(_, second):
    """A node is lost."""
    second.kill()
    return 1, -9


@pytest.mark.long
@pytest.mark.timeout(100)
@pytest.mark.parametrize(
    ("name", "happen"),
    [("trainjob", drain), ("job", lose), ("jobset", lose_and_delete)],
)
def test_the_pods_of_a_manifest_train_and_resume_to_the_digest_of_one_process(
    name, happen, start_both, digest_alone, tmp_path
):
    run_dir = tmp_path / "runs" / "train"
    first, second = start_both(name)
    deadline = time.monotonic() + 40
    while not (run_dir / "checkpoints" / "newest").exists():
        assert time.monotonic() < deadline, first.output + second.output
        time.sleep(0.1)
    expected = happen(first, second)
    found = first.wait(), second.wait()
    assert found[1] == expected[1], second.output
    assert expected[0] in (None, found[0]), first.output
    assert found[0] not in (0, 2, 76)
    assert not (run_dir / "checkpoints" / f"step-{NUM_STEPS:08}").exists()
    (tmp_path / "app" / "hurry").touch()
    first, second = start_both(name)
    assert (first.wait(), second.wait()) == (0, 0), first.output + second.output
    assert "world size 2" in first.output
    began, resumed = resumed_after(run_dir)
    assert began is None
    assert 0 < resumed < NUM_STEPS
    assert digest(run_dir) == digest_alone


@pytest.mark.long
def test_a_process_that_is_pid_1_saves_on_sigterm_and_a_shell_in_front_swallows_it(require, tmp_path):
    """Each with its own process IDs, as in a container."""
    missing = subprocess.run(["unshare", "--pid", "--fork", "true"], capture_output=True).returncode
    require("cluster", "a PID namespace needs root (and unshare)" if missing else None)
    (tmp_path / "train.py").write_text(TRAIN)
    command = [sys.executable, "-m", "lockstep._cli.main", "run", "--run-dir", "run", "train.py"]
    forms = {"exec": command, "shell": ["sh", "-c", "sleep 100; true"]}
    processes = {}
    for form, words in forms.items():
        container = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *words]
        processes[form] = subprocess.Popen(container, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "run" / "checkpoints" / "newest").exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        for process in processes.values():
            [first] = psutil.Process(process.pid).children()
            first.terminate()
        assert processes["exec"].wait(30) == 75
        with pytest.raises(subprocess.TimeoutExpired):
            processes["shell"].wait(1)
    finally:
        for process in processes.values():
            process.kill()
            process.communicate()
