"""What the processor can do, and the memory that is free."""

import psutil

from lockstep.machine import processor


def test_formats_are_those_that_the_processor_has_instructions_for(monkeypatch):
    monkeypatch.setattr(processor, "_line", lambda *names: "fpu sse2 avx512_bf16" if "flags" in names else "")
    assert processor.native_formats() == {"bfloat16"}
    monkeypatch.setattr(processor, "_line", lambda *names: "")
    assert processor.native_formats() == set()


def test_no_more_memory_is_free_than_the_machine_has_or_the_container_may_use(monkeypatch, tmp_path):
    assert 0 < processor.free_bytes() <= psutil.virtual_memory().total
    (tmp_path / "memory.max").write_text("3000\n")
    (tmp_path / "memory.current").write_text("1000\n")
    monkeypatch.setattr(processor, "_CGROUP", tmp_path)
    assert processor.free_bytes() == 2000
    (tmp_path / "memory.max").write_text("max\n")
    assert processor.free_bytes() > 2000
