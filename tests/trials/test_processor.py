"""What the processor can do."""

from lockstep.tools.trials import machine


def test_formats_are_those_that_the_processor_has_instructions_for(monkeypatch):
    monkeypatch.setattr(machine, "_line", lambda *names: "fpu sse2 avx512_bf16" if "flags" in names else "")
    assert machine.find_components(num_gpus=0) & {"float16", "bfloat16"} == {"bfloat16"}
    monkeypatch.setattr(machine, "_line", lambda *names: "")
    assert machine.find_components(num_gpus=0) & {"float16", "bfloat16"} == set()
