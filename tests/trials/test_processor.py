"""What the processor can do."""

from lockstep.tools.trials import processor


def test_formats_are_those_that_the_processor_has_instructions_for(monkeypatch):
    monkeypatch.setattr(processor, "_line", lambda *names: "fpu sse2 avx512_bf16" if "flags" in names else "")
    assert processor.native_formats() == {"bfloat16"}
    monkeypatch.setattr(processor, "_line", lambda *names: "")
    assert processor.native_formats() == set()
