"""What the check knows about names of PyTorch, Python and lockstep."""

from __future__ import annotations

import re


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


APPENDING = {"append", "extend", "appendleft", "extendleft", "insert", "put", "put_nowait", "push"}
EMPTYING = words(
    """
    clear zero_ fill_ copy_ reset load_state_dict set_ manual_seed seed normal_ uniform_
    """
)
"""The methods that leave nothing of the old content."""
NOT_IN_PLACE = {"requires_grad_", "unscale_", "share_memory_", "clip_grad_norm_"}
TAKING = {"popleft", "get", "get_nowait", "popitem"}
SAME_OBJECT = words(
    """
    parameters named_parameters buffers named_buffers modules named_modules children named_children state_dict items
    values keys to cpu cuda double half bfloat16 eval train requires_grad_ view view_as reshape flatten squeeze
    unsqueeze transpose permute detach_ detach t contiguous get_parameter get_buffer get_submodule apply share_memory
    share_memory_ unwrap cached
    """
)
"""Methods whose result shares what they are called on."""
PARTS = {"get", "unbind", "split", "chunk", "select", "narrow"}
"""Methods whose result is a part of what they are called on."""
CONTAINERS = {
    "list": "list",
    "dict": "dict",
    "set": "set",
    "frozenset": "set",
    "collections.deque": "deque",
    "collections.defaultdict": "dict",
    "collections.OrderedDict": "dict",
    "collections.Counter": "dict",
    "queue.Queue": "queue",
    "queue.SimpleQueue": "queue",
    "queue.LifoQueue": "queue",
    "bytearray": "list",
}
TENSORS = re.compile(
    r"(torch|numpy)\.(zeros|ones|full|empty|arange|tensor|eye|as_tensor|rand|randn|randint|linspace|array|zeros_like|ones_like"
    r"|full_like|empty_like|randn_like|rand_like|from_numpy|asarray|Tensor|FloatTensor|LongTensor)$"
)
RANDOM_CALL = re.compile(
    r"(torch\.(rand|randn|randint|randperm|bernoulli|normal|multinomial|rand_like|randn_like|poisson)"
    r"|random\.(?!Random\b|seed\b)\w+|numpy\.random\.(?!default_rng\b|RandomState\b|Generator\b|seed\b)\w+)$"
)
GENERATORS = words(
    """
    torch.Generator numpy.random.default_rng numpy.random.RandomState numpy.random.Generator random.Random
    random.SystemRandom
    """
)
CLOCKS = re.compile(
    r"(time\.(time|perf_counter|monotonic|process_time|time_ns|perf_counter_ns|monotonic_ns|strftime|ctime|sleep)"
    r"|timeit\.default_timer|datetime\.(datetime|date)\.(now|today|utcnow)|torch\.cuda\.(Event|\w*memory\w*|synchronize)"
    r"|(psutil|resource|tracemalloc)\.\w+)$"
)
MODULES = re.compile(
    r"(torch\.nn\.(?!functional|init|utils|Parameter$|parameter)\w+(\.\w+)*|torchvision\.models\.\w+.*|timm\.create_model)$"
)
STATISTICS = re.compile(r"(BatchNorm|SyncBatchNorm|InstanceNorm.*track)")
OPTIMIZERS = re.compile(
    r"(torch\.optim\.(?!lr_scheduler|swa_utils)\w+(\.\w+)*|bitsandbytes\.optim\.\w+|transformers\.Adafactor)$"
)
BASES_OF_MODULES = {"Module", "Sequential", "ModuleList", "PreTrainedModel", "LightningModule"}
LOADERS = {"torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader"}
COPIES = {"copy.deepcopy", "copy.copy"}
AVERAGES = re.compile(r".*\b(AveragedModel|ModelEma\w*|EMAModel|ExponentialMovingAverage|EMA)$")
COUNTERS = {"itertools.count", "itertools.cycle"}
OF_PROCESS = {
    "torch.distributed.get_world_size": ("WORLD_SIZE",),
    "torch.distributed.get_rank": ("RANK",),
}
VARIABLES = {"os.getenv", "os.environ.get", "os.environ.pop", "os.environ.setdefault"}
"""The calls that return an environment variable."""
SYNCHRONISED = re.compile(r"(torchmetrics|torcheval|ignite)\b")
"""Libraries whose objects reduce over ranks by themselves."""
WRAPPERS = {"tqdm", "trange", "track", "progress_bar", "list", "tuple", "iter", "reversed", "Progress"}
GRADIENT_HOOKS = {
    "register_hook",
    "register_full_backward_hook",
    "register_post_accumulate_grad_hook",
    "register_full_backward_pre_hook",
}

BUILTINS = words(
    """
    list dict set frozenset bytearray len next iter setattr getattr print input open sorted reversed map filter
    sum min max zip enumerate tuple isinstance type id hasattr callable range int float str bool abs round any all exit
    quit exec divmod pow repr
    """
)

_HARMLESS = re.compile(
    r"(^|\.)(print|pprint|logger|logging|log|_log|wandb|writer|tb|tensorboard|board|tqdm|bar|pbar|progress|progress_bar|mlflow|warn"
    r"|warnings|console|rich|sys\.std\w+|info|debug|warning|error|flush|print0|csv_writer|csvwriter|logfile|log_file"
    r"|add_scalars?|add_text|add_histogram|log_metrics?|write|writerow|writelines|set_postfix\w*|set_description\w*|display|plot_\w+"
    r"|makedirs|mkdir|sleep|synchronize|empty_cache|collect)\b(\.\w+)*$"
)
_PICTURE = re.compile(
    r"(^|\.)(save_image|imshow|imsave|imwrite|savefig|plot|scatter|hist|add_images?|add_figure|add_video|make_grid|set_postfix\w*"
    r"|set_description\w*|add_histogram|plt\.\w+|show|draw\w*|visuali[sz]e\w*|save_\w*(grid|picture|image|sample|plot)s?\w*)$"
)
_SAVING = re.compile(r"(^|\.)(save\w*|dump|dumps|savetxt|savez|to_csv|to_json|write_text|write_bytes)$")
_BARS = re.compile(
    r"(^|\.)\w*(bar|progress|tqdm|timer|clock|profiler|prof|watch)\w*\.(update|step|advance|set_\w+|tick|start|stop)$"
)


def is_harmless(name: str) -> bool:
    """Whether a call of this name shows something, and changes nothing on which the training
    depends."""
    return bool(_HARMLESS.search(name) or _PICTURE.search(name) or _BARS.search(name))


def kind_of(name: str) -> str | None:
    """The kind of use that a call of this name makes of its arguments, as ``Machine.sink`` has
    them; None: it makes a picture of them."""
    if _PICTURE.search(name) or _BARS.search(name):
        return None
    if _SAVING.search(name):
        return "save"
    return "print" if _HARMLESS.search(name) else "answer"


def is_in_place(method: str) -> bool:
    """Whether a tensor's method changes it."""
    return method.endswith("_") and not method.endswith("__") and not method.startswith("_") and method not in NOT_IN_PLACE


def is_exported(library: str, name: str) -> bool:
    """Whether ``from library import *`` may bind a name, as far as it matters here: one that is
    known by its full name, or may be a class."""
    full = f"{library}.{name}"
    known = (TENSORS, RANDOM_CALL, CLOCKS, MODULES, OPTIMIZERS, AVERAGES)
    return name[:1].isupper() or full in LOADERS | COPIES | COUNTERS | GENERATORS or any(p.match(full) for p in known)
