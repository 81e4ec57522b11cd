"""PyTorch's numeric settings, each with a value that it does not have by itself."""

from torch import backends, set_flush_denormal, use_deterministic_algorithms

from lockstep._state.recovery.software import numerics

CUDA, MATMUL = backends.cuda, backends.cuda.matmul

# Without those that PyTorch lets nobody set where it was not built for CUDA: the libraries for
# products and linear algebra. By the name that errors give it: what sets it, or where it is as an
# attribute; and another value.
SWITCHES = {
    "cuda.matmul.fp32_precision": (MATMUL, "tf32"),  # from now on older getters raise
    "cudnn.conv.fp32_precision": (backends.cudnn.conv, "ieee"),
    "cudnn.rnn.fp32_precision": (backends.cudnn.rnn, "ieee"),
    "mkldnn.matmul.fp32_precision": (backends.mkldnn.matmul, "bf16"),
    "mkldnn.conv.fp32_precision": (backends.mkldnn.conv, "bf16"),
    "mkldnn.rnn.fp32_precision": (backends.mkldnn.rnn, "bf16"),
    "deterministic_algorithms": (use_deterministic_algorithms, True),
    "cudnn_deterministic": (backends.cudnn, True),
    "cudnn_benchmark": (backends.cudnn, True),
    "cuda.matmul.allow_bf16_reduced_precision_reduction": (MATMUL, False),
    "cuda.matmul.allow_fp16_reduced_precision_reduction": (MATMUL, False),
    "cuda.matmul.allow_fp16_accumulation": (MATMUL, True),
    "cuda.enable_flash_sdp": (CUDA.enable_flash_sdp, False),
    "cuda.enable_mem_efficient_sdp": (CUDA.enable_mem_efficient_sdp, False),
    "cuda.enable_math_sdp": (CUDA.enable_math_sdp, False),
    "cuda.enable_cudnn_sdp": (CUDA.enable_cudnn_sdp, False),
    "cuda.allow_fp16_bf16_reduction_math_sdp": (CUDA.allow_fp16_bf16_reduction_math_sdp, True),
    "cudnn.enabled": (backends.cudnn, False),
    "cudnn.depthwise_kernel": (backends.cudnn, "cudnn"),
    "mkldnn.enabled": (backends.mkldnn, False),
    "mkldnn.deterministic": (backends.mkldnn, True),
    "opt_einsum.enabled": (backends.opt_einsum, None),
    "set_flush_denormal": (set_flush_denormal, True),
}


def switch(name):
    """Set the setting of this name to its other value, as scripts do."""
    where, value = SWITCHES[name]
    if callable(where):
        where(value)
    else:
        setattr(where, name.rpartition(".")[2].removeprefix("cudnn_"), value)


def switch_all():
    """Set them all, for good; returns what each has changed of what runs compare."""
    changed, before = [], numerics()
    for name in SWITCHES:
        switch(name)
        now = numerics()
        changed.append({key: value for key, value in now.items() if value != before[key]})
        before = now
    return changed
