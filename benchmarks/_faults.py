"""The planted faults of ``diagnosis.py``: the fault, its rank, and the fields that a report on it
must have."""

from __future__ import annotations

from dataclasses import dataclass

SOON_S = 15.0
"""The seconds within which a fault must be named after it shows."""
WINDOW_S = 60.0
"""The limit for a slow rank of an unchanged script, which shows only over some time."""
WORK_S = 50.0
"""The limit for a rank that computes, which may be legitimate until the ranks that wait for it time
out, after 40 s."""
MEET_S = 75.0
"""The limit for ranks that have not met in their first minute."""


@dataclass(frozen=True)
class Fault:
    """One fault."""

    group: str
    form: str
    """Of the script that lockstep runs: ``lockstep`` or ``unchanged``."""
    name: str
    """See workers/faults, workers/parting_*.py and workers/alone.py."""
    rank: int
    nproc: int
    kinds: tuple[str, ...]
    """A report of another kind is wrong."""
    place: str = ""
    """The function in which the report must see the rank."""
    cause: str = ""
    """A regular expression for the report's cause. Another one is wrong, none is no answer."""
    call: str = ""
    """A regular expression for the rank's collective."""
    error: str = ""
    """A regular expression for the text of a report, where that is the error's own."""
    words: str = ""
    """A regular expression for what a launcher without reports must print; empty: one of the
    above."""
    limit_s: float = SOON_S
    options: tuple[str, ...] = ()
    """Of lockstep run."""
    script: str = "faulty"
    shared_memory: str = ""
    """The size of /dev/shm, in a separate mount namespace; empty: the machine's size."""
    is_of_all: bool = False
    """Whether the report is of all ranks, and not of one."""
    fails_on_all: bool = False
    """Whether all ranks fail with one error, so that only its text has the rank."""

    @property
    def said(self) -> str:
        """A regular expression for what a launcher without reports must print."""
        return self.words or self.place or self.error or self.cause or self.call


def _stuck(name: str, form: str, rank: int = 1, nproc: int = 3, cause: str = "", *, limit_s: float = SOON_S) -> Fault:
    place = "" if name in ("stop_this_process", "resize_in_thread") else name
    return Fault("stuck", form, name, rank, nproc, ("waiting",), place, cause, limit_s=limit_s)


def _calls(name: str, form: str, rank: int = 1, nproc: int = 3, words: str = "") -> Fault:
    place = "" if name == "leave_out_group" else name  # where the others are
    return Fault("calls", form, name, rank, nproc, ("mismatch", "waiting"), place, words=words)


def _loader(name: str, form: str, rank: int, nproc: int, cause: str = "", *, in_it: bool = False, shm: str = "") -> Fault:
    limit_s = WORK_S if name == "backtrack_in_worker" else SOON_S
    place = name if in_it else ""
    return Fault("loader", form, name, rank, nproc, ("loader", "waiting"), place, cause, limit_s=limit_s, shared_memory=shm)


def _slow(name: str, form: str, rank: int, nproc: int = 3, cause: str = "", place: str = "", *options: str) -> Fault:
    limit_s = WINDOW_S if form == "unchanged" or place else SOON_S
    words = f"slow.*({cause or place})|STRAGGLER.*{cause.upper() or place}"
    return Fault("slow", form, name, rank, nproc, ("slow",), place, cause, words=words, limit_s=limit_s, options=options)


def _lingering(name: str, form: str, rank: int, nproc: int = 3, error: str = "") -> Fault:
    return Fault("ends not", form, name, rank, nproc, ("lingering",), error=error)


def _dead(name: str, form: str, rank: int = 1, nproc: int = 3, cause: str = "", error: str = "", words: str = "") -> Fault:
    kinds = ("failed", "loader", "waiting")
    return Fault("dead", form, name, rank, nproc, kinds, cause=cause, error=error, words=words)


def _differing(name: str, form: str, rank: int, nproc: int, *errors: str, script: str = "faulty") -> Fault:
    error = "(?s)" + "".join(f"(?=.*{part})" for part in (*errors, rf"\brank {rank}\b"))
    kinds = ("failed", "mismatch")
    return Fault("differs", form, name, rank, nproc, kinds, error=error, script=script, fails_on_all=True)


def _parting(name: str, form: str, rank: int = 1, nproc: int = 3, cause: str = "") -> Fault:
    kinds = ("parted", "failed", "waiting", "mismatch")
    return Fault("parts", form, name, rank, nproc, kinds, place="train", cause=cause, script="parting")


def _ended(name: str, rank: int, nproc: int, error: str = "") -> Fault:
    """Returns a fault of an unchanged script whose program has finished."""
    kinds = ("parted", "failed", "waiting")
    return Fault("parts", "unchanged", name, rank, nproc, kinds, cause="break|exit|ended", error=error, script="parting")


def _apart(name: str, nproc: int, limit_s: float) -> Fault:
    return Fault("alone", "unchanged", name, 0, nproc, ("alone",), script="alone", is_of_all=True, limit_s=limit_s)


FAULTS = (
    _stuck("wait_for_licence", "lockstep"),
    _stuck("wait_for_licence", "unchanged", 2),
    _stuck("parse_caption", "lockstep", limit_s=WORK_S),
    _stuck("parse_caption", "unchanged", 2, limit_s=WORK_S),
    _stuck("resize_images", "unchanged", 0, 2, "gil"),
    _stuck("resize_images", "lockstep", 2, 3, "gil"),
    _stuck("resize_in_thread", "unchanged", 1, 3, "gil"),
    _stuck("update_cache", "unchanged", 0),
    _stuck("wait_for_cache", "unchanged", 2, 3, "lock"),
    _stuck("wait_for_cache", "lockstep", 1, 2, "lock"),
    _stuck("lock_index", "unchanged", 0, 3, "flock"),
    _stuck("lock_index", "lockstep", 1, 3, "flock"),
    _stuck("lock_index", "unchanged", 1, 2, "flock"),
    _stuck("read_queue", "unchanged", 1, 2),
    _stuck("map_in_dead_pool", "unchanged", 0, 2, "pool"),
    _stuck("map_in_dead_pool", "lockstep", 2, 3, "pool"),
    _stuck("read_control_file", "unchanged"),
    _stuck("refine_boxes", "lockstep", 0, limit_s=WORK_S),
    _stuck("refine_boxes", "unchanged", 2, limit_s=WORK_S),
    _stuck("poll_for_labels", "lockstep"),
    _stuck("poll_for_labels", "unchanged", 0),
    _stuck("save_weights", "unchanged"),
    _stuck("call_preprocessor", "lockstep", 2),
    _stuck("call_preprocessor", "unchanged", 0),
    _stuck("stop_this_process", "lockstep", 1, 3, "stopped"),
    _stuck("stop_this_process", "unchanged", 2, 3, "stopped"),
    _calls("receive_weights", "lockstep"),
    _calls("receive_weights", "unchanged", 2),
    _calls("average_by_hand", "lockstep"),
    _calls("average_by_hand", "unchanged", 2, words="Detected mismatch|average_by_hand"),
    _calls("evaluate_alone", "unchanged", 0),
    _calls("make_group", "unchanged", 1, 2),
    _calls("make_group", "lockstep", 0),
    _calls("make_mesh", "unchanged", 2, 4),
    _calls("make_mesh", "lockstep", 1, 4),
    _calls("check_all_are_here", "unchanged", 1, 2),
    _calls("check_all_are_here", "lockstep", 2),
    _calls("gather_objects", "unchanged", 0),
    _calls("gather_objects", "lockstep", 1, 2),
    _calls("wrap_again", "unchanged", 1, 2),
    _calls("broadcast_own", "unchanged", 1, 2),
    _calls("broadcast_own", "lockstep", 2),
    _calls("reduce_to_own", "unchanged", 0),
    _calls("reduce_to_own", "lockstep", 1, 2),
    _calls("reduce_longer", "unchanged", 2),
    _calls("reduce_longer", "lockstep", 1, 2),
    _calls("gather_last_batch", "unchanged", 1, 2),
    _calls("gather_last_batch", "lockstep", 2),
    _calls("broadcast_instead", "unchanged", 1, 2),
    _calls("broadcast_instead", "lockstep", 2),
    _calls("gather_instead", "unchanged", 0),
    _calls("count_samples", "unchanged"),
    _calls("count_samples", "lockstep", 2),
    _calls("take_maximum", "unchanged", 2),
    _calls("take_maximum", "lockstep"),
    _calls("reduce_by_group", "unchanged"),
    _calls("reduce_by_group", "lockstep", 2),
    _calls("leave_out_group", "unchanged"),
    _loader("fetch_from_archive", "lockstep", 1, 3, in_it=True),
    _loader("fetch_from_archive", "unchanged", 1, 3, in_it=True),
    _loader("stop_worker", "unchanged", 0, 2, "stopped"),
    _loader("stop_worker", "lockstep", 2, 3, "stopped"),
    _loader("lock_archive", "unchanged", 1, 3, in_it=True),
    _loader("lock_archive", "lockstep", 1, 2, in_it=True),
    _loader("backtrack_in_worker", "unchanged", 1, 2, in_it=True),
    _loader("fill_shared_memory", "unchanged", 1, 2, "shm", shm="24m"),
    _loader("fill_shared_memory", "lockstep", 2, 3, "shm", shm="24m"),
    _loader("use_long_temporary_path", "unchanged", 2, 3, "tmpdir"),
    _dead("use_long_temporary_path", "lockstep", 1, 2, error="TMPDIR"),
    _slow("slow_forward", "lockstep", 2, 3, "forward"),
    _slow("slow_layer", "lockstep", 1, 3, "backward"),
    _slow("decode_slowly", "lockstep", 0, 3, "data|loader"),
    _slow("write_images", "lockstep", 0, 3, "script"),
    _slow("clip_slowly", "lockstep", 1, 3, "script"),
    _slow("slow_forward", "lockstep", 2, 3, "forward", "", "--strategy", "fsdp"),
    _slow("slow_layer", "lockstep", 0, 3, "backward", "", "--strategy", "fsdp"),
    _slow("slow_forward", "unchanged", 1, 3, place="slow_forward"),
    _slow("slow_layer", "unchanged", 2, 3, place="backward"),
    _slow("write_images", "unchanged", 1, 2, place="write_images"),
    _slow("draw_picture", "unchanged", 1, 3, place="draw_picture"),
    _slow("draw_picture", "unchanged", 0, 2, place="draw_picture"),
    _slow("decode_slowly", "unchanged", 1, 3, place="decode_slowly"),
    _slow("store_on_slow_disk", "unchanged", 1, 3, place="store_on_slow_disk"),
    _slow("store_on_slow_disk", "lockstep", 0, 2, place="store_on_slow_disk"),
    _slow("store_in_slow_file", "unchanged", 2, 3, place="store_in_slow_file"),
    _lingering("leave_thread", "unchanged", 1, error="upload"),
    _lingering("leave_exit_handler", "unchanged", 2, error="flush_metrics"),
    _lingering("leave_child", "unchanged", 0, error="renderer|child"),
    _lingering("leave_full_queue", "unchanged", 1, 2, error="[Qq]ueue"),
    _lingering("leave_thread", "lockstep", 2, error="upload"),
    _lingering("leave_child", "lockstep", 1, 2, error="renderer|child"),
    Fault("dead", "unchanged", "read_settings", 1, 3, ("failed", "mismatch"), error="KeyError: 'depth'"),
    _dead("read_labels", "unchanged", 1, 3, "ValueError", "label 10 is not one of"),
    _dead("call_extension", "lockstep", 1, 3, "SIGSEGV", words="SIGSEGV|Signal 11|Segmentation"),
    _dead("abort_in_extension", "unchanged", 2, 3, "SIGABRT", words="SIGABRT|Signal 6|Aborted"),
    _dead("kill_this_process", "unchanged", 1, 3, "SIGKILL", words="SIGKILL|Signal 9"),
    _dead("leave_at_once", "unchanged", 2, error=r"(status|exitcode|code)\W+3\b"),
    _dead("open_many_files", "unchanged", 1, 3, "OSError", "Too many open files"),
    _dead("open_many_files", "lockstep", 0, 2, "OSError", "Too many open files"),
    _dead("write_to_full_disk", "unchanged", 0, 2, "", "No space left|write"),
    _dead("write_to_full_disk", "lockstep", 2, 3, "", "No space left|write"),
    _dead("load_vocabulary", "unchanged", 1, 2, "", "allocate"),
    _dead("write_past_shared_memory", "lockstep", 1, error="/dev/shm|shared memory"),
    _dead("kill_worker", "unchanged", 2, error="SIGKILL|[Ss]ignal: Killed|killed by signal"),
    _dead("read_broken_file", "lockstep", 1, 2, error="image 150 is truncated"),
    _differing("unused_layer", "unchanged", 2, 3, r"spare\.weight"),
    Fault("differs", "unchanged", "another_format", 2, 3, ("failed", "mismatch"), call="double"),
    Fault("differs", "unchanged", "another_width", 1, 3, ("failed", "mismatch"), error=r"params\[0\]|body\.weight"),
    _differing("another_format", "lockstep", 2, 3, "float64"),
    _differing("nudge_weights", "lockstep", 1, 3, r"body\.weight"),
    _differing("another_rate", "lockstep", 1, 3, r"\blr\b", r"0\.02"),
    _differing("another_decay", "lockstep", 0, 2, r"\bweight_decay\b", r"0\.1"),
    _differing("skip_update", "lockstep", 1, 2, "weight|bias", script="parting"),
    Fault("parts", "unchanged", "leave_the_loop", 1, 3, ("parted", "failed", "waiting"), cause="ended|break"),
    _parting("exit_in_loop", "lockstep", 1, 3, "exit|SystemExit"),
    _parting("exit_in_loop", "lockstep", 0, 2, "exit|SystemExit"),
    _ended("exit_in_loop", 1, 3, r"parting_torchrun.py"),
    _parting("break_before_evaluation", "lockstep", 1, 2, "break"),
    _parting("break_before_evaluation", "lockstep", 2, 3, "break"),
    _parting("break_before_evaluation", "unchanged", 0, 3),
    _parting("break_before_save", "lockstep", 0, 3, "break"),
    _parting("break_before_save", "unchanged", 1, 2),
    _parting("stop_at_own_loss", "lockstep", 1, 2, "break"),
    _parting("stop_by_own_clock", "lockstep", 2, 3, "break"),
    _ended("stop_by_own_clock", 1, 2),
    _parting("return_early", "lockstep", 1, 2, "return"),
    _parting("catch_error", "lockstep", 1, 3, "break|exception|Error"),
    _stuck("wait_for_data", "unchanged", 2, limit_s=MEET_S),
    _stuck("wait_for_data", "lockstep", 1, 2, limit_s=MEET_S),
    _apart("train_alone", 2, SOON_S),
    _apart("train_alone_for_long", 3, MEET_S),
)
