// An accelerator that is none, on PyTorch's PrivateUse1: kernels run at once on the CPU, and an account is kept of what a
// device would have done. Each stream is a vector clock, so a missing wait is found whatever the timing: accesses that no event
// orders, and memory freed while another stream may use it. Copies to pinned memory arrive when the host has waited for them,
// and pinned sources must stay as they are until then. Launches and waits of the host are counted, with the line of Python.
//
// What it cannot show: speed, real kernels and their rounding, memory that runs out, NCCL's watchdog.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/extension.h>

#include <bit>
#include <chrono>
#include <deque>
#include <map>
#include <mutex>
#include <set>

namespace {

using at::Tensor;
using c10::Device, c10::DeviceIndex, c10::Stream, c10::intrusive_ptr, c10::make_intrusive;
using Tensors = std::vector<Tensor>;

constexpr auto SIM = c10::DeviceType::PrivateUse1;
constexpr int HOST = 0;  // the clock of the host, with all its threads
constexpr int POISON = 0x7f;  // 3.4e38 as a float
constexpr int MOST_REPORTS = 100;
constexpr int STREAMS_IN_POOL = 32;  // as many as CUDA has of each priority

DeviceIndex num_devices() {
  static const int number = [] { auto text = std::getenv("SIM_DEVICES"); return text ? std::atoi(text) : 2; }();
  return number;
}

thread_local DeviceIndex current_device = 0;
thread_local std::map<int, int64_t> current_stream;
thread_local bool inside = false;  // a kernel: what it does on the CPU is no launch of its own

struct Inside {
  bool before = inside;
  Inside() { inside = true; }
  ~Inside() { inside = before; }
};

struct OnDevice {
  DeviceIndex before = current_device;
  explicit OnDevice(int index) { if (index >= 0) current_device = index; }
  ~OnDevice() { current_device = before; }
};

// ---- The account: what is said, and where

std::map<std::string, int64_t> launches, waits;
std::map<int, int64_t> sent;  // bytes of messages, all-to-alls and all-gathers, by the rank that they go to
std::vector<std::string> reports;
std::vector<std::pair<bool, std::string>> unplaced;  // (is a wait, text), whose line is found when the lock is free again

// The innermost two lines of Python outside of torch.
std::string where() {
  if (!Py_IsInitialized()) return "at exit";
  py::gil_scoped_acquire gil;
  std::string found;
  int lines = 0;
  auto frame = py::reinterpret_borrow<py::object>((PyObject*)PyEval_GetFrame());
  while (frame && !frame.is_none() && lines < 2) {
    auto code = frame.attr("f_code");
    auto file = code.attr("co_filename").cast<std::string>();
    if (file.find("/torch/") == std::string::npos && file.find("contextlib") == std::string::npos) {
      auto parent = file.rfind('/', file.rfind('/') - 1);
      found += (lines++ ? " < " : "") + file.substr(parent == std::string::npos ? 0 : parent + 1) + ":" +
          std::to_string(frame.attr("f_lineno").cast<int>()) + " " + code.attr("co_name").cast<std::string>();
    }
    frame = frame.attr("f_back");
  }
  return lines ? found : "the backward pass";
}

std::vector<Tensor> dropped;  // what is freed when the lock is free again

// The lock of everything here. Python's is never asked for while it is held, which another thread may have while it waits for this
// one: lines are looked up after its release, and tensors freed, whose objects in Python may end with them.
struct Locked {
  static inline std::recursive_mutex mutex;
  static inline thread_local int depth = 0;
  Locked() { mutex.lock(); depth++; }
  ~Locked() {
    auto found = depth == 1 ? std::exchange(unplaced, {}) : decltype(unplaced)();
    auto freed = depth == 1 ? std::exchange(dropped, {}) : decltype(dropped)();
    depth--;
    mutex.unlock();
    if (found.empty()) return;
    auto place = where();
    std::lock_guard<std::recursive_mutex> again(mutex);
    for (auto& [is_wait, text] : found) {
      if (is_wait) waits[text + " @ " + place]++;
      else if (reports.size() < MOST_REPORTS) reports.push_back(text + " @ " + place);
    }
  }
};

void report(const std::string& text) { unplaced.emplace_back(false, text); }

// ---- Streams: a vector clock each

using Clock = std::vector<uint64_t>;
std::deque<Clock> clocks(1);  // a reference stays valid when a stream is added
std::map<std::pair<int, int64_t>, int> numbers;  // of streams, by device and id

int number_of(int device, int64_t stream) {
  auto [it, is_new] = numbers.try_emplace({device, stream}, clocks.size());
  if (is_new) clocks.emplace_back();
  return it->second;
}
int number_of(const Stream& stream) { return number_of(stream.device_index(), stream.id()); }
int current_number(int device) { return number_of(device, current_stream[device]); }

void join(Clock& clock, const Clock& other) {
  if (clock.size() < other.size()) clock.resize(other.size());
  for (size_t i = 0; i < other.size(); i++) clock[i] = std::max(clock[i], other[i]);
}
bool covers(const Clock& clock, const Clock& other) {
  auto both = clock;
  join(both, other);
  return both == clock;
}
uint64_t at_stream(const Clock& clock, int stream) { return size_t(stream) < clock.size() ? clock[stream] : 0; }

// A launch: it comes after all that the host has waited for.
uint64_t launch(int stream, const std::string& name) {
  launches[name]++;
  auto& clock = clocks[stream];
  join(clock, clocks[HOST]);
  if (clock.size() <= size_t(stream)) clock.resize(stream + 1);
  return ++clock[stream];
}

// ---- Memory

struct Access { uint64_t time = 0; std::string name; };
struct Block {
  size_t bytes;
  DeviceIndex device;
  int home;  // the stream that it was allocated on, and whose later work may reuse it
  bool is_recorded = false;
  int writer = -1;
  Access write;
  std::map<int, Access> reads;  // by stream, since the last write
};
std::map<const void*, Block> blocks;
int64_t bytes_now = 0, bytes_peak = 0;

void touch(const Tensor& tensor, bool writes, int stream, uint64_t time, const std::string& name) {
  if (!tensor.defined() || tensor.device().type() != SIM || !tensor.has_storage() || !tensor.numel()) return;
  auto it = blocks.find(tensor.storage().data());
  if (it == blocks.end()) return;
  auto& block = it->second;
  auto& clock = clocks[stream];
  auto unordered = [&](int other, const Access& access, const char* did) {
    if (other < 0 || other == stream || at_stream(clock, other) >= access.time) return;
    report("RACE: " + name + (writes ? " writes" : " reads") + " on stream " + std::to_string(stream) + " what " +
           access.name + did + std::to_string(other));
  };
  unordered(block.writer, block.write, " wrote on stream ");
  if (!writes) { block.reads[stream] = {time, name}; return; }
  for (auto& [other, access] : block.reads) unordered(other, access, " reads on stream ");
  block.writer = stream;
  block.write = {time, name};
  block.reads.clear();
}

void* aligned(size_t bytes) {
  void* pointer = nullptr;
  TORCH_CHECK(posix_memalign(&pointer, 512, std::max<size_t>(bytes, 512)) == 0, "out of memory");
  return pointer;
}

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    Locked lock;
    auto pointer = aligned(bytes);
    std::memset(pointer, POISON, bytes);
    blocks[pointer] = Block{bytes, current_device, current_number(current_device)};
    bytes_peak = std::max(bytes_peak, bytes_now += bytes);
    return {pointer, pointer, &free_block, Device(SIM, current_device)};
  }
  static void free_block(void* pointer) {
    Locked lock;
    auto& block = blocks.at(pointer);
    auto in_use = [&](int stream, const Access& access) {
      if (stream < 0 || stream == block.home || block.is_recorded) return;
      if (at_stream(clocks[block.home], stream) >= access.time || at_stream(clocks[HOST], stream) >= access.time) return;
      report("FREED: " + access.name + " uses it on stream " + std::to_string(stream) + ", and it is of stream " +
             std::to_string(block.home));
    };
    in_use(block.writer, block.write);
    for (auto& [stream, access] : block.reads) in_use(stream, access);
    std::memset(pointer, POISON, block.bytes);
    bytes_now -= block.bytes;
    blocks.erase(pointer);
    std::free(pointer);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
} memory;

std::map<const char*, size_t> pinned;
int64_t pinned_now = 0;  // with each block as large as CUDA's allocator makes it: a power of two

int64_t rounded(size_t bytes) { return std::bit_ceil(std::max<size_t>(bytes, 1)); }

bool is_pinned(const void* pointer) {
  Locked lock;
  auto it = pinned.upper_bound((const char*)pointer);
  return it != pinned.begin() && (const char*)pointer < (--it)->first + it->second;
}

struct PinnedMemory final : at::HostAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    Locked lock;
    auto pointer = aligned(bytes);
    pinned[(char*)pointer] = std::max<size_t>(bytes, 1);
    pinned_now += rounded(bytes);
    return {pointer, pointer, &release, Device(c10::kCPU)};
  }
  static void release(void* pointer) {
    Locked lock;
    auto it = pinned.find((char*)pointer);
    pinned_now -= rounded(it->second);
    pinned.erase(it);
    std::free(pointer);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
  bool record_event(void*, void*, Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
} pinned_memory;

// ---- The host waits; copies between device and pinned memory end then

struct Copy { int stream; uint64_t time; Tensor on_host, value; bool to_device; };
std::vector<Copy> under_way;

void end_copies() {
  Inside kernel;
  std::vector<Copy> rest;
  for (auto& copy : std::exchange(under_way, {})) {
    if (at_stream(clocks[HOST], copy.stream) < copy.time) {
      rest.push_back(std::move(copy));
      continue;
    }
    if (!copy.to_device) copy.on_host.copy_(copy.value);
    else if (!copy.on_host.equal(copy.value)) report("CHANGED: pinned memory, while it was copied to the device");
    dropped.push_back(std::move(copy.on_host));
  }
  under_way.insert(under_way.end(), rest.begin(), rest.end());
}

void host_waits(const Clock& clock, const std::string& reason) {
  unplaced.emplace_back(true, reason);
  join(clocks[HOST], clock);
  end_copies();
}

// ---- Devices, streams and events

struct Event { Clock clock; std::chrono::steady_clock::time_point at; bool was_asked = false; };

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = SIM;
  c10::DeviceType type() const override { return SIM; }
  DeviceIndex deviceCount() const noexcept override { return num_devices(); }
  Device getDevice() const override { return Device(SIM, current_device); }
  void setDevice(Device device) const override {
    TORCH_CHECK(device.index() < num_devices(), "there is no device ", device);
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(Device device) const noexcept override { if (device.index() >= 0) current_device = device.index(); }
  Device exchangeDevice(Device device) const override { auto before = getDevice(); setDevice(device); return before; }

  static Stream stream(Device device, std::optional<int64_t> id = std::nullopt) {
    auto index = device.index() < 0 ? current_device : device.index();
    return Stream(Stream::UNSAFE, Device(SIM, index), id ? *id : current_stream[index]);
  }
  Stream getStream(Device device) const override { return stream(device); }
  Stream getDefaultStream(Device device) const override { return stream(device, 0); }
  Stream getNewStream(Device device, int = 0) const override {
    static std::map<int, int64_t> made;
    Locked lock;
    return stream(device, made[stream(device).device_index()]++ % STREAMS_IN_POOL + 1);
  }
  Stream getStreamFromGlobalPool(Device device, bool = false) const override { return getNewStream(device); }
  Stream exchangeStream(Stream next) const override {
    auto before = stream(next.device());
    current_stream[next.device_index()] = next.id();
    return before;
  }
  bool queryStream(const Stream& s) const override {
    Locked lock;
    return at_stream(clocks[HOST], number_of(s)) >= at_stream(clocks[number_of(s)], number_of(s));
  }
  void synchronizeStream(const Stream& s) const override {
    Locked lock;
    host_waits(Clock(clocks[number_of(s)]), "synchronize a stream");
  }
  void synchronizeDevice(const DeviceIndex device) const override {
    Locked lock;
    Clock all;
    for (auto& [key, number] : numbers) if (key.first == device) join(all, clocks[number]);
    host_waits(all, "synchronize a device");
  }
  void recordDataPtrOnStream(const c10::DataPtr& pointer, const Stream&) const override {
    Locked lock;
    if (auto it = blocks.find(pointer.get()); it != blocks.end()) it->second.is_recorded = true;
  }

  void record(void** event, const Stream& s, const DeviceIndex, const c10::EventFlag) const override {
    Locked lock;
    auto& clock = clocks[number_of(s)];
    join(clock, clocks[HOST]);
    if (!*event) *event = new Event;
    *static_cast<Event*>(*event) = {clock, std::chrono::steady_clock::now()};
  }
  void block(void* event, const Stream& s) const override {
    Locked lock;
    if (event) join(clocks[number_of(s)], static_cast<Event*>(event)->clock);
  }
  // No wait. It has not come to pass when it is asked for the first time: a device is behind the host.
  bool queryEvent(void* event) const override {
    if (!event) return true;
    Locked lock;
    auto& [clock, when, was_asked] = *static_cast<Event*>(event);
    if (covers(clocks[HOST], clock)) return true;
    if (!std::exchange(was_asked, true)) return false;
    join(clocks[HOST], clock);
    end_copies();
    return true;
  }
  void synchronizeEvent(void* event) const override {
    Locked lock;
    if (event) host_waits(static_cast<Event*>(event)->clock, "synchronize an event");
  }
  double elapsedTime(void* from, void* to, const DeviceIndex) const override {
    return std::chrono::duration<double, std::milli>(static_cast<Event*>(to)->at - static_cast<Event*>(from)->at).count();
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
};

struct Generator : at::CPUGeneratorImpl {
  explicit Generator(DeviceIndex index) {
    device_ = Device(SIM, index);
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
};

const at::Generator& default_generator(int index) {
  static const auto all = [] {
    std::vector<at::Generator> made;
    for (int i = 0; i < num_devices(); i++) made.push_back(at::make_generator<Generator>(i));
    return made;
  }();
  return all.at(index < 0 ? current_device : index);
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return num_devices(); }
  DeviceIndex getCurrentDevice() const override { return current_device; }
  void setCurrentDevice(DeviceIndex index) const override { Guard().setDevice(Device(SIM, index)); }
  DeviceIndex exchangeDevice(DeviceIndex index) const override { return Guard().exchangeDevice(Device(SIM, index)).index(); }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override { return index < 0 ? -1 : exchangeDevice(index); }
  const at::Generator& getDefaultGenerator(DeviceIndex index) const override { return default_generator(index); }
  at::Generator getNewGenerator(DeviceIndex index) const override {
    return at::make_generator<Generator>(index < 0 ? current_device : index);
  }
  Device getDeviceFromPtr(void* pointer) const override { Locked lock; return Device(SIM, blocks.at(pointer).device); }
  bool isPinnedPtr(const void* pointer) const override { return is_pinned(pointer); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto made = memory.allocate(bytes);
    std::memcpy(made.get(), storage.data(), std::min(bytes, storage.nbytes()));
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(made));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
} hooks;

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);
REGISTER_ALLOCATOR(SIM, &memory);

// ---- Operators: those of the CPU, on the memory of the device

Tensor on_cpu(const Tensor& tensor) {
  if (!tensor.defined() || tensor.device().type() != SIM) return tensor;
  auto data = tensor.numel() ? tensor.data_ptr() : nullptr;
  return at::from_blob(data, tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
}
std::optional<Tensor> on_cpu(const std::optional<Tensor>& tensor) {
  return tensor && tensor->defined() ? std::optional<Tensor>(on_cpu(*tensor)) : std::nullopt;
}
Tensors on_cpu(const Tensors& tensors) {
  Tensors views;
  for (auto& tensor : tensors) views.push_back(on_cpu(tensor));
  return views;
}

const std::set<std::string> RANDOM = {
    "aten::bernoulli", "aten::bernoulli_", "aten::exponential_", "aten::multinomial", "aten::native_dropout", "aten::normal",
    "aten::normal_", "aten::random_", "aten::randperm", "aten::rrelu_with_noise", "aten::uniform_"};
// Their result has a size, or is a number, that only the device knows.
const std::set<std::string> WAITING = {
    "aten::_unique2", "aten::equal", "aten::masked_select", "aten::nonzero", "aten::repeat_interleave", "aten::unique_dim",
    "aten::unique_consecutive"};

struct Used { Tensors read, written; int device = -1; bool waits = false, has_mask = false; at::Generator generator; };

void look(Used& used, const c10::IValue& value, bool writes) {
  auto add = [&](const Tensor& tensor) {
    if (!tensor.defined() || tensor.device().type() != SIM) return;
    (writes ? used.written : used.read).push_back(tensor);
    if (used.device < 0) used.device = tensor.device().index();
  };
  if (value.isTensor()) add(value.toTensor());
  else if (value.isTensorList()) for (const Tensor& tensor : value.toTensorVector()) add(tensor);
  else if (value.isOptionalTensorList()) {
    for (const std::optional<Tensor> tensor : value.toOptionalTensorList()) {
      if (!tensor) continue;
      add(*tensor);
      used.has_mask |= tensor->scalar_type() == at::kBool;
    }
  } else if (value.isDevice() && value.toDevice().type() == SIM && used.device < 0) used.device = value.toDevice().index();
}

void account(
    const std::string& name, const Tensors& read, const Tensors& written, int device, bool waits = false, int64_t times = 1) {
  if (inside) return;
  Locked lock;
  launches[name] += times - 1;
  auto stream = current_number(device);
  auto time = launch(stream, name);
  for (auto& tensor : read) touch(tensor, false, stream, time, name);
  for (auto& tensor : written) touch(tensor, true, stream, time, name);
  if (waits) host_waits(Clock(clocks[stream]), name);
}

// How many kernels CUDA starts for an operation on lists: one, or one for each tensor where a list has several dtypes, or lists
// have other strides than the first (ForeachUtils.h, can_use_fast_route).
int64_t launches_of(const std::string& name, const c10::FunctionSchema& schema, const torch::jit::Stack& stack) {
  if (name.rfind("aten::_foreach_", 0)) return 1;
  std::vector<std::vector<Tensor>> lists;
  for (size_t i = stack.size() - schema.arguments().size(); i < stack.size(); i++)
    if (stack[i].isTensorList() && stack[i].toTensorVector().size()) lists.push_back(stack[i].toTensorVector());
  for (auto& list : lists) {
    for (size_t i = 0; i < list.size(); i++)
      if (list[i].dtype() != list[0].dtype() || (list.size() == lists[0].size() && list[i].strides() != lists[0][i].strides()))
        return list.size();
  }
  return 1;
}

void by_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (inside) return at::native::cpu_fallback(op, stack);
  const auto& schema = op.schema();
  const auto& name = schema.name();
  Used used;
  used.waits = WAITING.count(name);
  auto times = launches_of(name, schema, *stack);
  for (size_t i = 0; i < schema.arguments().size(); i++) {
    auto& value = (*stack)[stack->size() - schema.arguments().size() + i];
    auto alias = schema.arguments()[i].alias_info();
    look(used, value, alias && alias->isWrite());
    if (!value.isGenerator() || value.toGenerator().device().type() != SIM) continue;
    used.generator = value.toGenerator();
    value = c10::IValue();
  }
  if (used.device < 0) used.device = current_device;
  {
    Inside kernel;
    OnDevice guard(used.device);
    if (RANDOM.count(name)) {  // the CPU draws, from where the device's generator is
      auto cpu = at::detail::getDefaultCPUGenerator();
      auto own = used.generator.defined() ? used.generator : default_generator(used.device);
      auto before = cpu.get_state();
      cpu.set_state(own.get_state());
      at::native::cpu_fallback(op, stack);
      own.set_state(cpu.get_state());
      cpu.set_state(before);
    } else {
      at::native::cpu_fallback(op, stack);
    }
  }
  for (size_t i = 0; i < schema.returns().size(); i++) {
    auto& value = (*stack)[stack->size() - schema.returns().size() + i];
    look(used, value, true);
    used.waits |= value.isBool() || value.isInt() || value.isDouble();
  }
  used.waits |= used.has_mask && name != "aten::index";  // which calls nonzero itself
  account(name, used.read, used.written, used.device, used.waits, times);
}

Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<Device> device,
             std::optional<bool>, std::optional<at::MemoryFormat> format) {
  OnDevice guard(device ? device->index() : -1);
  return at::detail::empty_generic(
      size, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype), format);
}
Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<Device> device, std::optional<bool>) {
  OnDevice guard(device ? device->index() : -1);
  return at::detail::empty_strided_generic(
      size, strides, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype));
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  auto a = on_cpu(from), b = on_cpu(to);
  if (inside) { b.copy_(a); return to; }
  Locked lock;
  bool is_read = from.device().type() == SIM, is_written = to.device().type() == SIM;
  auto stream = current_number((is_read ? from : to).device().index());
  bool crosses = is_read && is_written && from.device() != to.device();
  auto other = crosses ? current_number(to.device().index()) : stream;
  join(clocks[stream], clocks[other]);  // PyTorch has both streams wait for each other
  const char* name = !is_read ? "copy to the device" : is_written ? "copy" : "copy to the host";
  auto time = launch(stream, name);
  touch(from, false, stream, time, name);
  touch(to, true, stream, time, name);
  join(clocks[other], clocks[stream]);
  auto& on_host = is_read ? b : a;
  bool is_pending = non_blocking && !(is_read && is_written) && on_host.numel() && is_pinned(on_host.data_ptr());
  Inside kernel;
  if (is_pending && is_read) {
    under_way.push_back({stream, time, b, a.clone(), false});
    if (b.is_non_overlapping_and_dense()) std::memset(b.data_ptr(), POISON, b.nbytes());
    return to;
  }
  b.copy_(a);
  if (is_pending) under_way.push_back({stream, time, a, a.clone(), true});
  else if (!(is_read && is_written) && from.numel()) host_waits(Clock(clocks[stream]), name);
  return to;
}
Tensor copy_and_resize(const Tensor& from, const Tensor& to) {
  if (!to.sizes().equals(from.sizes())) to.resize_(from.sizes());
  return copy_from(from, to, false);
}
at::Scalar item(const Tensor& tensor) {
  account("item", {tensor}, {}, tensor.device().index(), true);
  Inside kernel;
  return on_cpu(tensor).item();
}

// Convolutions and BatchNorm ask for kernels of the device's own, before any fallback.
Tensor convolution(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, at::IntArrayRef stride,
                   at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding,
                   int64_t groups) {
  Tensor out;
  {
    Inside kernel;
    out = at::convolution(on_cpu(x), on_cpu(weight), on_cpu(bias), stride, padding, dilation, transposed, output_padding,
                          groups).to(x.device());
  }
  account("convolution", {x, weight}, {out}, x.device().index());
  return out;
}
std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& grad, const Tensor& x, const Tensor& weight, at::IntArrayRef stride, at::IntArrayRef padding,
    at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, int64_t groups, std::array<bool, 3> mask) {
  Tensor of_x, of_weight, of_bias;
  {
    Inside kernel;
    std::vector<int64_t> bias_size{transposed ? weight.size(1) * groups : weight.size(0)};
    std::tie(of_x, of_weight, of_bias) = at::convolution_backward(
        on_cpu(grad), on_cpu(x), on_cpu(weight), at::IntArrayRef(bias_size), stride, padding, dilation, transposed,
        output_padding, groups, mask);
    for (auto* tensor : {&of_x, &of_weight, &of_bias}) if (tensor->defined()) *tensor = tensor->to(x.device());
  }
  if (of_x.defined()) account("convolution of the inputs' gradient", {grad, weight}, {of_x}, x.device().index());
  if (of_weight.defined()) account("convolution of the weight's gradient", {grad, x}, {of_weight}, x.device().index());
  if (of_bias.defined()) account("sum of the bias' gradient", {grad}, {of_bias}, x.device().index());
  return {of_x, of_weight, of_bias};
}
std::tuple<Tensor, Tensor, Tensor> batch_norm(
    const Tensor& x, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias, const std::optional<Tensor>& mean,
    const std::optional<Tensor>& variance, bool training, double momentum, double eps) {
  std::tuple<Tensor, Tensor, Tensor> results;
  {
    Inside kernel;
    auto [y, saved_mean, saved_scale] = at::native_batch_norm(
        on_cpu(x), on_cpu(weight), on_cpu(bias), on_cpu(mean), on_cpu(variance), training, momentum, eps);
    results = {y.to(x.device()), saved_mean.to(x.device()), saved_scale.to(x.device())};
  }
  Tensors written{std::get<0>(results), std::get<1>(results), std::get<2>(results)};
  for (auto* buffer : {&mean, &variance}) if (training && *buffer) written.push_back(**buffer);
  account("batch_norm", {x}, written, x.device().index());
  return results;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_and_resize);
  m.impl("_local_scalar_dense", &item);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);
  m.impl("resize_", [](const Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) -> const Tensor& {
    return at::native::resize_(self, size, format);
  });
  m.impl("set_.source_Storage_storage_offset",
         [](Tensor& self, at::Storage storage, int64_t offset, at::IntArrayRef size, at::IntArrayRef strides) -> Tensor& {
           return at::native::set_storage_cpu_(self, storage, offset, size, strides);
         });
  m.impl("set_.source_Storage", [](Tensor& self, at::Storage storage) -> Tensor& {
    int64_t length = storage.nbytes() / self.dtype().itemsize();
    return at::native::set_storage_cpu_(self, storage, 0, {length}, {1});
  });
  m.impl("record_stream", [](Tensor& self, Stream s) { Guard().recordDataPtrOnStream(self.storage().data_ptr(), s); });
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
  m.impl("native_batch_norm", &batch_norm);
  // Fused kernels, one launch each, as a GPU has them; elsewhere PyTorch goes through the list.
  for (auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.rfind("aten::_foreach_", 0) && name.name.rfind("aten::_fused_sgd", 0) && name.name.rfind("aten::_fused_adam", 0))
      continue;
    auto full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    m.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&by_cpu>());
  }
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&by_cpu>()); }

// ---- A process group with NCCL's contract: no tags, a stream of its own, and the host does not wait. Gloo moves the bytes.

struct DeviceWork : c10d::Work {
  Clock clock;
  intrusive_ptr<c10::ivalue::Future> future;
  Tensors held;  // until somebody has waited
  int device;
  bool has_own_stream;

  DeviceWork(int device, bool has_own_stream) : Work(-1, c10d::OpType::UNKNOWN), device(device), has_own_stream(has_own_stream) {}
  bool wait(std::chrono::milliseconds) override {
    Locked lock;
    if (has_own_stream) join(clocks[current_number(device)], clock);
    dropped.insert(dropped.end(), held.begin(), held.end());
    held.clear();
    return true;
  }
  void synchronize() override { wait({}); }
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  Tensors result() override { return {}; }
  intrusive_ptr<c10::ivalue::Future> getFuture() override { return future; }
};

using Work = intrusive_ptr<c10d::Work>;
using Lists = std::vector<Tensors>;

struct DeviceGroup : c10d::Backend {
  intrusive_ptr<c10d::Backend> gloo;
  std::map<int, int64_t> own_stream;

  DeviceGroup(intrusive_ptr<c10d::Backend> gloo, int rank, int size) : Backend(rank, size), gloo(std::move(gloo)) {}
  const std::string getBackendName() const override { return "simccl"; }

  template <class Run>
  Work run(const char* name, bool is_async, const Tensors& read, const Tensors& written, Run gloo_runs) {
    auto device = (written.empty() ? read : written).at(0).device();
    for (auto* tensors : {&read, &written}) for (auto& tensor : *tensors) {
      TORCH_CHECK(tensor.device() == device && device.type() == SIM, name, ": tensors on ", tensor.device(), " and ", device);
      TORCH_CHECK(tensor.is_non_overlapping_and_dense(), name, ": a tensor is not contiguous");
    }
    {
      std::optional<py::gil_scoped_release> release;
      if (PyGILState_Check()) release.emplace();
      Inside kernel;
      gloo_runs()->wait();
    }
    auto work = make_intrusive<DeviceWork>(device.index(), is_async);
    Locked lock;
    auto caller = Guard::stream(device), stream = caller;
    if (is_async) {
      if (!own_stream.count(device.index())) own_stream[device.index()] = Guard().getNewStream(device).id();
      stream = Guard::stream(device, own_stream[device.index()]);
      join(clocks[number_of(stream)], clocks[number_of(caller)]);
      for (auto* tensors : {&read, &written}) work->held.insert(work->held.end(), tensors->begin(), tensors->end());
    }
    auto number = number_of(stream);
    auto time = launch(number, name);
    for (auto& tensor : read) touch(tensor, false, number, time, name);
    for (auto& tensor : written) touch(tensor, true, number, time, name);
    work->clock = clocks[number];
    Guard().exchangeStream(stream);  // the future's event is of the stream that is current when it completes
    work->future = make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()), std::vector<Device>{device});
    work->future->markCompleted(c10::IValue(written));
    Guard().exchangeStream(caller);
    return work;
  }

  void count_sent(int rank, int64_t bytes) {
    Locked lock;
    if (rank != rank_) sent[rank] += bytes;
  }

  Work broadcast(Tensors& t, const c10d::BroadcastOptions& o) override {
    return run("broadcast", o.asyncOp, t, t, [&] { auto a = on_cpu(t); return gloo->broadcast(a, o); });
  }
  Work allreduce(Tensors& t, const c10d::AllreduceOptions& o) override {
    return run("all_reduce", o.asyncOp, t, t, [&] { auto a = on_cpu(t); return gloo->allreduce(a, o); });
  }
  Work reduce(Tensors& t, const c10d::ReduceOptions& o) override {
    return run("reduce", o.asyncOp, t, t, [&] { auto a = on_cpu(t); return gloo->reduce(a, o); });
  }
  Work allgather(Lists& out, Tensors& in, const c10d::AllgatherOptions& o) override {
    return run("all_gather", o.asyncOp, in, out[0], [&] { Lists a{on_cpu(out[0])}; auto b = on_cpu(in); return gloo->allgather(a, b, o); });
  }
  Work _allgather_base(Tensor& out, Tensor& in, const c10d::AllgatherOptions& o) override {
    count_sent((rank_ + 1) % size_, (size_ - 1) * in.nbytes());  // by a ring
    return run("all_gather_single", o.asyncOp, {in}, {out}, [&] { auto a = on_cpu(out), b = on_cpu(in); return gloo->_allgather_base(a, b, o); });
  }
  Work allgather_into_tensor_coalesced(Tensors& out, Tensors& in, const c10d::AllgatherOptions& o) override {
    return run("all_gather_coalesced", o.asyncOp, in, out, [&] { auto a = on_cpu(out), b = on_cpu(in); return gloo->allgather_into_tensor_coalesced(a, b, o); });
  }
  Work reduce_scatter(Tensors& out, Lists& in, const c10d::ReduceScatterOptions& o) override {
    return run("reduce_scatter", o.asyncOp, in[0], out, [&] { auto a = on_cpu(out); Lists b{on_cpu(in[0])}; return gloo->reduce_scatter(a, b, o); });
  }
  Work _reduce_scatter_base(Tensor& out, Tensor& in, const c10d::ReduceScatterOptions& o) override {
    return run("reduce_scatter_single", o.asyncOp, {in}, {out}, [&] { auto a = on_cpu(out), b = on_cpu(in); return gloo->_reduce_scatter_base(a, b, o); });
  }
  Work alltoall_base(Tensor& out, Tensor& in, std::vector<int64_t>& to, std::vector<int64_t>& from, const c10d::AllToAllOptions& o) override {
    for (int rank = 0; rank < size_; rank++)
      if (rank != rank_) count_sent(rank, from.empty() ? in.nbytes() / size_ : from[rank] * in.nbytes() / std::max<int64_t>(in.size(0), 1));
    return run("all_to_all_single", o.asyncOp, {in}, {out}, [&] { auto a = on_cpu(out), b = on_cpu(in); return gloo->alltoall_base(a, b, to, from, o); });
  }
  Work gather(Lists& out, Tensors& in, const c10d::GatherOptions& o) override {
    return run("gather", o.asyncOp, in, out.empty() ? Tensors{} : out[0], [&] { Lists a; if (!out.empty()) a.push_back(on_cpu(out[0])); auto b = on_cpu(in); return gloo->gather(a, b, o); });
  }
  Work scatter(Tensors& out, Lists& in, const c10d::ScatterOptions& o) override {
    return run("scatter", o.asyncOp, in.empty() ? Tensors{} : in[0], out, [&] { auto a = on_cpu(out); Lists b; if (!in.empty()) b.push_back(on_cpu(in[0])); return gloo->scatter(a, b, o); });
  }
  Work send(Tensors& t, int to, int) override {
    count_sent(to, t[0].nbytes());
    if (is_coalescing) { messages.push_back({t, to, true}); return nullptr; }
    return run("send", true, t, {}, [&] { auto a = on_cpu(t); return gloo->send(a, to, 0); });
  }
  Work recv(Tensors& t, int from, int) override {
    if (is_coalescing) { messages.push_back({t, from, false}); return nullptr; }
    return run("recv", true, {}, t, [&] { auto a = on_cpu(t); return gloo->recv(a, from, 0); });
  }
  // Messages of a batch are one launch, and none waits for another.
  struct Message { Tensors tensors; int peer; bool is_sent; };
  std::vector<Message> messages;
  bool is_coalescing = false;
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override { is_coalescing = true; }
  Work endCoalescing() override {
    is_coalescing = false;
    auto batch = std::exchange(messages, {});
    Tensors read, written;
    for (auto& message : batch) (message.is_sent ? read : written).push_back(message.tensors[0]);
    return run("messages", true, read, written, [&] {
      std::vector<Work> works;
      for (bool is_sent : {false, true}) for (auto& message : batch) if (message.is_sent == is_sent) {
        auto a = on_cpu(message.tensors);
        works.push_back(is_sent ? gloo->send(a, message.peer, 0) : gloo->recv(a, message.peer, 0));
      }
      for (size_t i = 0; i + 1 < works.size(); i++) works[i]->wait();
      return works.back();  // it may be waited for once only
    });
  }
  Work barrier(const c10d::BarrierOptions& o) override {
    { Locked lock; host_waits(Clock(clocks[current_number(current_device)]), "barrier"); }
    return gloo->barrier(o);
  }
  // NCCL's communicators are destroyed together: who comes alone waits for the others, up to the timeout.
  void shutdown() override { gloo->barrier({})->wait(); }
  void abort() override {}
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return 0; }
};

}  // namespace

// ---- Autocast: CUDA's rules. (The macros need this namespace.)

namespace at::autocast {
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define SIM_LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define SIM_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define SIM_FP32_SET(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define SIM_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_LOWER_PRECISION_FP(SIM_LOWER)
  AT_FORALL_FP32(SIM_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(SIM_FP32_SET)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(SIM_PROMOTE)
}
}  // namespace at::autocast

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  at::RegisterPrivateUse1HooksInterface(&hooks);
  at::setHostAllocator(SIM, &pinned_memory);
  m.def("device_count", &num_devices);
  m.def("default_generator", &default_generator);
  m.def("launches", [] { Locked lock; return launches; });
  m.def("waits", [] { Locked lock; return waits; });
  m.def("reports", [] { Locked lock; return reports; });
  m.def("reset", [] { Locked lock; launches.clear(); waits.clear(); reports.clear(); sent.clear(); });
  m.def("sent", [] { Locked lock; return sent; });
  m.def("memory", [] { Locked lock; return std::make_pair(bytes_now, bytes_peak); });
  m.def("pinned", [] { Locked lock; return pinned_now; });
  m.def("reset_peak", [] { Locked lock; bytes_peak = bytes_now; });
  m.def("group", [](const intrusive_ptr<c10d::Backend>& gloo, int rank, int size) {
    return c10::static_intrusive_pointer_cast<c10d::Backend>(make_intrusive<DeviceGroup>(gloo, rank, size));
  });
}
