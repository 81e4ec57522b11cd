"""Each sentence of SECURITY.md about what is protected has its tests, and they exist."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "SECURITY.md").read_text()
TESTS = {
    "A run listens on loopback only": (
        "team/test_together.py::test_no_port_of_a_running_job_can_be_reached_from_another_host",
        "comm/test_rendezvous.py::test_on_one_machine_nothing_listens_to_the_network",
    ),
    "Before anything that a rank sends": ("comm/test_strangers.py::test_a_rank_without_the_runs_secret_is_not_let_in",),
    "The other end of each connection": (
        "comm/test_strangers.py::test_another_user_of_this_machine_is_not_taken_for_a_rank",
    ),
    "What `lockstep` itself exchanges": ("comm/test_strangers.py::test_a_pickle_that_a_rank_sends_in_join_is_not_run",),
    "Somebody else's program": (
        "comm/test_strangers.py::test_what_is_said_of_a_stranger_is_not_taken_for_an_echo_of_a_lost_connection",
    ),
    "The rendezvous, the secret": (
        "launch/test_private.py::test_only_its_user_can_enter_it_and_the_launch_keeps_everything_there",
        "launch/test_private.py::test_sockets_of_multiprocessing_are_gone_after_their_processes_were_killed",
    ),
    "The private directory goes": ("launch/test_private.py::test_the_next_launch_removes_what_a_killed_launcher_left",),
    "A rendezvous at a path": ("comm/test_rendezvous.py::test_a_place_of_another_user_is_not_trusted",),
    "Launchers sign what they write": (
        "launch/test_on_nodes.py::test_what_a_stranger_writes_into_the_store_is_never_executed",
        "launch/test_on_nodes.py::test_what_a_stranger_writes_while_a_run_goes_on_ends_it_with_the_reason",
    ),
    "A signed value counts": (
        "launch/test_secret.py::test_what_is_signed_opens_under_its_own_name_and_unchanged_alone",
        "launch/test_signed.py::test_what_was_not_signed_for_its_name_is_refused_by_whatever_reads_it",
    ),
    "The secret's file": (
        "launch/test_secret.py::test_the_file_is_beside_the_run_for_its_user_alone_and_goes_at_the_end",
        "launch/test_secret.py::test_a_file_that_others_could_have_written_or_read_is_none",
    ),
    "Each store, and the ranks": ("launch/test_secret.py::test_a_secret_is_derived_anew_for_each_store",),
    "The store of the launchers": (
        "launch/test_on_nodes.py::test_scripts_of_others_get_the_whole_environment_and_only_one_address_listens_with_a_given_secret",
    ),
    "Checkpoints and weights": ("checkpoint/test_weights.py::test_a_file_of_pickles_is_not_run",),
    "`lockstep replay` runs": (
        "replay/test_consent.py::test_a_directory_that_was_unpacked_here_runs_nothing_unasked_and_what_it_names_is_shown",
        "replay/test_consent.py::test_the_users_own_run_is_replayed_without_a_question_only_with_the_script_that_it_ran",
        "replay/test_consent.py::test_files_of_another_user_are_not_trusted",
        "replay/test_consent.py::test_at_a_terminal_it_asks",
    ),
    "No other command runs": ("replay/test_consent.py::test_commands_that_read_a_run_run_nothing_that_it_names",),
    "Control characters in any string": (
        "cli/test_planted.py::test_control_characters_in_every_string_of_a_run_are_printed_as_text_by_every_command",
        "cli/test_planted.py::test_what_is_said_of_a_file_that_cannot_be_read_is_text_as_well",
    ),
    "Reports (`lockstep report`)": (
        "cli/test_report_command.py::test_what_a_script_chooses_is_text_and_nothing_else",
        "cli/test_report_command.py::test_a_page_is_one_file_in_the_directory_that_loads_nothing",
    ),
    "A damaged checkpoint": ("checkpoint/test_store.py::test_a_damaged_one_is_named_and_the_one_before_it_is_taken",),
    "A run is written to only if": (
        "recovery/test_hostile_directories.py::test_the_run_of_another_user_is_refused_and_a_copy_goes_on",
        "recovery/test_hostile_directories.py::test_a_run_and_checkpoints_that_their_user_has_put_elsewhere_go_on",
    ),
    "A file of a run that is": (
        "recovery/test_hostile_directories.py::test_a_run_is_not_resumed_through_a_link",
        "test_regular.py::test_nothing_is_written_through_a_link_or_into_a_fifo",
    ),
    "What commands and resumes read": (
        "recovery/test_hostile_directories.py::test_what_is_in_the_place_of_a_file_is_read_by_nobody_for_long",
        "test_regular.py::test_a_file_that_is_too_large_is_not_read",
    ),
    "JSON must be": ("recovery/test_hostile_directories.py::test_a_value_of_a_wrong_type_is_no_traceback",),
    "A manifest names no file": ("recovery/test_hostile_directories.py::test_a_manifest_cannot_name_files_elsewhere",),
    "A run whose `birth.json`": (
        "recovery/test_hostile_directories.py::test_a_birth_that_was_edited_is_restored_from_the_checkpoint_and_that_is_said",
    ),
}
"""By the first words of a sentence."""


def promises():
    """The sentences of the sections before that on what is not protected."""
    protected, _, _ = TEXT.partition("## What is not protected")
    return [" ".join(item.split()) for item in re.findall(r"^- (.+(?:\n  .+)*)", protected, flags=re.MULTILINE)]


def test_each_sentence_has_a_test_and_each_test_a_sentence():
    told = promises()
    assert len(told) == len(TESTS)
    for sentence in told:
        assert sum(sentence.startswith(words) for words in TESTS) == 1, sentence


def test_the_tests_exist():
    for tests in TESTS.values():
        for test in tests:
            file, _, name = test.partition("::")
            code = ast.parse((ROOT / "tests" / file).read_text())
            assert name in {node.name for node in code.body if isinstance(node, ast.FunctionDef)}, test
