"""The secret of a run: whoever keeps the store makes it, others find it or are told what to do."""

from codes import raises

from lockstep._base.errors import ConfigError
from lockstep._launch.nodes import plan_nodes
from lockstep._launch.options import LaunchOptions
from lockstep._launch.secret import Secret, shared_secret

LONG = "a secret that is long enough"
NODES = plan_nodes(LaunchOptions(nnodes="2", node_rank=1, master_addr="host0", master_port=4000))


def found(run_dir=None, file=None, text=None):
    return shared_secret(NODES, None if run_dir is None else str(run_dir), file, text)


def test_what_is_signed_opens_under_its_own_name_and_unchanged_alone():
    secret = Secret(b"k")
    for value in (b"", b"\0\xff value"):
        signed = secret.sign("name", value)
        assert secret.open("name", signed) == value
        assert secret.open("other", signed) is None
        assert Secret(b"l").open("name", signed) is None
        assert secret.open("name", signed + b"x") is None
        assert secret.open("name", value) is None
    assert secret.open("ab", secret.sign("a", b"b")) is None
    assert "k" not in repr(secret).replace("Secret", "")


def test_the_file_is_beside_the_run_for_its_user_alone_and_goes_at_the_end(tmp_path):
    keeper, other = found(tmp_path / "run"), found(tmp_path / "run")
    assert keeper.look() is None
    with keeper.kept():
        assert keeper.path == tmp_path / ".lockstep-host0-4000.secret"
        assert keeper.path.stat().st_mode & 0o777 == 0o600
        assert [path.name for path in tmp_path.iterdir()] == [keeper.path.name]
        assert other.look().open("name", keeper.look().sign("name", b"value")) == b"value"
    assert not list(tmp_path.iterdir())


def test_each_launch_has_a_secret_of_its_own_and_the_last_one_counts(tmp_path):
    killed, again = found(tmp_path / "run"), found(tmp_path / "run")
    with killed.kept():
        before = killed.look()
        with again.kept():
            assert again.look() != before
        assert killed.look() is None
    assert not list(tmp_path.iterdir())


def test_a_file_that_others_could_have_written_or_read_is_none(tmp_path):
    secret = found(tmp_path / "run")
    secret.path.write_text(LONG)
    secret.path.chmod(0o644)
    assert secret.look() is None
    secret.path.chmod(0o600)
    assert secret.look() == Secret(LONG.encode())
    secret.path.rename(tmp_path / "elsewhere")
    secret.path.symlink_to(tmp_path / "elsewhere")
    assert secret.look() is None
    secret.path.unlink()
    secret.path.touch(0o600)
    assert secret.look() is None


def test_a_secret_is_derived_anew_for_each_store():
    secret = Secret(LONG.encode())
    assert secret.derived(b"1") == Secret(LONG.encode()).derived(b"1")
    assert secret.derived(b"1") != secret.derived(b"2") != secret


def test_a_secret_that_was_given_needs_no_file(tmp_path):
    (tmp_path / "mine").write_text(f"{LONG}\n")
    by_file, by_text = found(tmp_path / "run", str(tmp_path / "mine")), found(tmp_path / "run", None, LONG)
    with by_file.kept(), by_text.kept():
        assert by_file.look() == by_text.look() == Secret(LONG.encode())
        assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_what_cannot_be_a_secret_is_refused(tmp_path):
    (tmp_path / "empty").touch()
    with raises(ConfigError, "secret-too-short"):
        found(text="short")
    with raises(ConfigError, "secret-too-short"):
        found(file=str(tmp_path / "empty"))
    with raises(ConfigError, "secret-unreadable"):
        found(file=str(tmp_path / "none"))


def test_who_has_another_secret_is_told_why(tmp_path):
    secret = found(tmp_path / "run")
    assert secret.not_shared("the keeper").code == "secret-unknown"
    assert found(text=LONG).not_shared("the keeper").code == "secret-differs"
    secret.path.write_text(LONG)
    secret.path.chmod(0o644)  # as a mount shows it that knows no modes
    assert (secret.look(), secret.not_shared("the keeper").code) == (None, "secret-not-private")
    assert "LOCKSTEP_SECRET" in str(secret.not_shared("the keeper"))
