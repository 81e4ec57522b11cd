"""Where the threads are that a rank may wait for."""

import threading

from lockstep.tools.explain.other_threads import other_threads


def test_threads_that_run_the_scripts_code_are_named_with_their_lines_and_others_are_not():
    lock, held, release = threading.Lock(), threading.Event(), threading.Event()

    def fill_cache():
        with lock:
            held.set()
            release.wait(60)

    threads = [
        threading.Thread(target=fill_cache, name="fill-cache"),
        threading.Thread(target=release.wait, args=(60,), name="silent"),
    ]
    for thread in threads:
        thread.start()
    held.wait(60)
    (line,) = other_threads(threading.get_ident())
    inside = other_threads(threads[0].ident)
    release.set()
    for thread in threads:
        thread.join(60)
    assert "`fill-cache`" in line
    assert "in fill_cache" in line
    assert not any("fill-cache" in each for each in inside)
