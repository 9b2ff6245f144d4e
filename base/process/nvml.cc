#include "base/process/nvml.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <dlfcn.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <string>

#include "base/check.h"

namespace fsdpd {
namespace {

constexpr char kLibrary[] = "libnvidia-ml.so.1";

// Declarations of the stable ABI of nvml.h, which Debian does not package.
using Return = int;  // 0 is success.
using Device = void*;
using Count = unsigned long long;
struct MemoryInfo {
  unsigned version;
  Count total, reserved, free, used;
};
constexpr unsigned kMemoryVersion = sizeof(MemoryInfo) | 2 << 24;
struct FieldValue {
  unsigned field, scope;
  long long timestamp, latency;
  int type;  // 1: unsigned.
  Return status;
  union {
    unsigned number;
    double widest;
  };
};
struct EventData {
  Device device;
  Count type, data;
  unsigned gpu_instance, compute_instance;
};
constexpr unsigned kInstantPower = 186;
constexpr int kUnsigned = 1;
constexpr int kSmClock = 1;
constexpr int kGpuSensor = 0;
constexpr int kCorrected = 0, kUncorrected = 1;
constexpr int kSinceDriverLoad = 0;
constexpr Count kXid = 8;
constexpr unsigned kMaxNvLinks = 18;  // NVML_NVLINK_MAX_LINKS.

// XIDs caused by programs: exception in a kernel (13), illegal address (31), stopped after one (43), cleanup
// after a killed process (45), video decoder (68), context switch timeout (109).
constexpr Count kOfPrograms[] = {13, 31, 43, 45, 68, 109};

// Limits the loop if the library reports errors without end.
constexpr int kMaxXids = 64;

struct SlowdownRow {
  GpuSlowdown slowdown;
  const char* name;
  Count bit;  // Bit in nvmlDeviceGetCurrentClocksThrottleReasons.
};
constexpr SlowdownRow kSlowdowns[kGpuSlowdowns] = {
    {GpuSlowdown::kPowerCap, "power_cap", 0x4},
    {GpuSlowdown::kHardware, "hardware", 0x8},
    {GpuSlowdown::kSoftwareThermal, "software_thermal", 0x20},
    {GpuSlowdown::kHardwareThermal, "hardware_thermal", 0x40},
    {GpuSlowdown::kPowerBrake, "power_brake", 0x80},
};

absl::Status Failed(absl::string_view call, Return code) {
  return absl::UnavailableError(absl::StrCat(kLibrary, ": ", call, " failed with code ", code));
}

// The value that `function` returns; empty if the library lacks the function or it fails.
template <typename Value, typename Function, typename... Arguments>
std::optional<Value> Ask(Function* function, Device device, Arguments... arguments) {
  Value value = 0;
  if (function == nullptr || function(device, arguments..., &value) != 0) return std::nullopt;
  return value;
}

template <typename To, typename From>
std::optional<To> Scaled(std::optional<From> value, double unit) {
  if (!value.has_value()) return std::nullopt;
  return static_cast<To>(static_cast<double>(*value) * unit);
}

}  // namespace

// Member, symbol and parameters of each function. Those from `get_power` on may be null.
#define FSDPD_NVML_FUNCTIONS(X)                                                   \
  X(init, "nvmlInit_v2", ())                                                      \
  X(shutdown, "nvmlShutdown", ())                                                 \
  X(get_count, "nvmlDeviceGetCount_v2", (unsigned*))                              \
  X(get_handle, "nvmlDeviceGetHandleByIndex_v2", (unsigned, Device*))             \
  X(get_memory, "nvmlDeviceGetMemoryInfo_v2", (Device, MemoryInfo*))              \
  X(get_power, "nvmlDeviceGetPowerUsage", (Device, unsigned*))                    \
  X(get_energy, "nvmlDeviceGetTotalEnergyConsumption", (Device, Count*))          \
  X(get_clock, "nvmlDeviceGetClockInfo", (Device, int, unsigned*))                \
  X(get_slowdowns, "nvmlDeviceGetCurrentClocksThrottleReasons", (Device, Count*)) \
  X(get_temperature, "nvmlDeviceGetTemperature", (Device, int, unsigned*))        \
  X(get_ecc_errors, "nvmlDeviceGetTotalEccErrors", (Device, int, int, Count*))    \
  X(get_fields, "nvmlDeviceGetFieldValues", (Device, int, FieldValue*))           \
  X(get_nvlink, "nvmlDeviceGetNvLinkState", (Device, unsigned, unsigned*))        \
  X(find_bus_id, "nvmlDeviceGetHandleByPciBusId_v2", (const char*, Device*))      \
  X(find_uuid, "nvmlDeviceGetHandleByUUID", (const char*, Device*))               \
  X(create_events, "nvmlEventSetCreate", (void**))                                \
  X(watch_events, "nvmlDeviceRegisterEvents", (Device, Count, void*))             \
  X(await_event, "nvmlEventSetWait_v2", (void*, EventData*, unsigned))            \
  X(free_events, "nvmlEventSetFree", (void*))

struct Nvml::Functions {
#define FSDPD_NVML_MEMBER(name, symbol, parameters) Return(*name) parameters;
  FSDPD_NVML_FUNCTIONS(FSDPD_NVML_MEMBER)
};

const char* NameOf(GpuSlowdown slowdown) { return kSlowdowns[static_cast<int>(slowdown)].name; }

Nvml::Nvml() : call_(std::make_unique<Functions>()) {}

Nvml::~Nvml() {
  if (events_ != nullptr && call_->free_events != nullptr) call_->free_events(events_);
  if (initialized_) call_->shutdown();
  if (library_ != nullptr) dlclose(library_);
}

absl::StatusOr<std::unique_ptr<Nvml>> Nvml::Open() {
  std::unique_ptr<Nvml> nvml(new Nvml());
  FSDPD_RETURN_IF_ERROR(nvml->Load());
  nvml->Watch();
  return nvml;
}

absl::Status Nvml::Load() {
  library_ = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) return absl::UnavailableError(absl::StrCat("no NVIDIA driver: ", dlerror()));
  const auto find = [this](auto* function, const char* name) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library_, name));
  };
  Functions& call = *call_;
#define FSDPD_NVML_FIND(name, symbol, parameters) find(&call.name, symbol);
  FSDPD_NVML_FUNCTIONS(FSDPD_NVML_FIND)
  if (!call.init || !call.shutdown || !call.get_count || !call.get_handle || !call.get_memory) {
    return absl::UnavailableError(
        absl::StrCat(kLibrary, " lacks a function that every driver since 2022 (510) has"));
  }
  // The newer name of the function.
  if (call.get_slowdowns == nullptr) find(&call.get_slowdowns, "nvmlDeviceGetCurrentClocksEventReasons");
  if (const Return code = call.init(); code != 0) return Failed("nvmlInit", code);
  initialized_ = true;
  unsigned count = 0;
  if (const Return code = call.get_count(&count); code != 0) return Failed("nvmlDeviceGetCount", code);
  devices_.resize(count);
  for (unsigned index = 0; index < count; ++index) {
    if (const Return code = call.get_handle(index, &devices_[index]); code != 0)
      return Failed("nvmlDeviceGetHandle", code);
  }
  return absl::OkStatus();
}

void Nvml::Watch() {
  if (!call_->create_events || !call_->watch_events || !call_->await_event) return;
  if (call_->create_events(&events_) != 0) events_ = nullptr;
  bool watched = events_ != nullptr;
  for (Device device : devices_) watched = watched && call_->watch_events(device, kXid, events_) == 0;
  if (watched) return;
  if (events_ != nullptr && call_->free_events != nullptr) call_->free_events(events_);
  events_ = nullptr;
}

absl::StatusOr<GpuMemory> Nvml::Memory(int gpu) const {
  MemoryInfo memory = {};
  memory.version = kMemoryVersion;
  if (const Return code = call_->get_memory(devices_[gpu], &memory); code != 0)
    return Failed("nvmlDeviceGetMemory", code);
  return GpuMemory{static_cast<int64_t>(memory.total), static_cast<int64_t>(memory.reserved)};
}

GpuReading Nvml::Read(int gpu) const {
  FSDPD_CHECK(gpu >= 0 && gpu < gpus());
  const Device device = devices_[gpu];
  GpuReading reading;
  reading.power_watts = Scaled<double>(Ask<unsigned>(call_->get_power, device), 1e-3);
  reading.energy_joules = Scaled<double>(Ask<Count>(call_->get_energy, device), 1e-3);
  reading.sm_clock_hertz = SmClockHertz(gpu);
  reading.temperature_celsius = Scaled<double>(Ask<unsigned>(call_->get_temperature, device, kGpuSensor), 1);
  const auto errors = [&](int kind) {
    return Scaled<int64_t>(Ask<Count>(call_->get_ecc_errors, device, kind, kSinceDriverLoad), 1);
  };
  reading.corrected_ecc_errors = errors(kCorrected);
  reading.uncorrected_ecc_errors = errors(kUncorrected);
  if (const auto reasons = Ask<Count>(call_->get_slowdowns, device)) {
    reading.slowdowns.emplace();
    for (const SlowdownRow& row : kSlowdowns)
      (*reading.slowdowns)[static_cast<int>(row.slowdown)] = (*reasons & row.bit) != 0;
  }
  reading.used_bytes = UsedBytes(gpu);
  return reading;
}

std::optional<double> Nvml::SmClockHertz(int gpu) const {
  return Scaled<double>(Ask<unsigned>(call_->get_clock, devices_[gpu], kSmClock), 1e6);
}

std::optional<int64_t> Nvml::UsedBytes(int gpu) const {
  MemoryInfo memory = {};
  memory.version = kMemoryVersion;
  if (call_->get_memory(devices_[gpu], &memory) != 0) return std::nullopt;
  return static_cast<int64_t>(memory.used + memory.reserved);
}

std::optional<int> Nvml::NvLinksUp(int gpu) const {
  std::optional<int> up;
  for (unsigned link = 0; link < kMaxNvLinks; ++link) {
    const std::optional<unsigned> state = Ask<unsigned>(call_->get_nvlink, devices_[gpu], link);
    if (state.has_value()) up = up.value_or(0) + (*state != 0 ? 1 : 0);
  }
  return up;
}

std::optional<double> Nvml::InstantPowerWatts(int gpu) const {
  FieldValue value = {};
  value.field = kInstantPower;
  if (call_->get_fields != nullptr && call_->get_fields(devices_[gpu], 1, &value) == 0 && value.status == 0 &&
      value.type == kUnsigned)
    return value.number * 1e-3;
  return Scaled<double>(Ask<unsigned>(call_->get_power, devices_[gpu]), 1e-3);
}

absl::StatusOr<int> Nvml::FindByBusId(absl::string_view bus_id) const {
  return Find(call_->find_bus_id, bus_id);
}

absl::StatusOr<int> Nvml::FindByUuid(absl::string_view uuid) const { return Find(call_->find_uuid, uuid); }

absl::StatusOr<int> Nvml::Find(int (*find)(const char*, void**), absl::string_view name) const {
  Device device = nullptr;
  if (find != nullptr && find(std::string(name).c_str(), &device) == 0) {
    for (int gpu = 0; gpu < gpus(); ++gpu) {
      if (devices_[gpu] == device) return gpu;
    }
  }
  return absl::NotFoundError(absl::StrCat(kLibrary, ": unknown GPU ", name));
}

std::optional<std::vector<int64_t>> Nvml::TakeXids() {
  if (events_ == nullptr) return std::nullopt;
  std::vector<int64_t> xids(devices_.size());
  EventData event = {};
  for (int i = 0; i < kMaxXids && call_->await_event(events_, &event, /*timeout_ms=*/0) == 0; ++i) {
    if (std::find(std::begin(kOfPrograms), std::end(kOfPrograms), event.data) != std::end(kOfPrograms))
      continue;
    for (int gpu = 0; gpu < gpus(); ++gpu) xids[gpu] += devices_[gpu] == event.device ? 1 : 0;
  }
  return xids;
}

absl::StatusOr<std::vector<GpuMemory>> ReadGpus() {
  FSDPD_ASSIGN_OR_RETURN(const std::unique_ptr<Nvml> nvml, Nvml::Open());
  std::vector<GpuMemory> memories;
  for (int gpu = 0; gpu < nvml->gpus(); ++gpu) {
    FSDPD_ASSIGN_OR_RETURN(const GpuMemory memory, nvml->Memory(gpu));
    memories.push_back(memory);
  }
  return memories;
}

absl::StatusOr<std::vector<int>> VisibleGpus(const Nvml& nvml, const char* visible) {
  std::vector<int> gpus;
  if (visible == nullptr) {
    gpus.resize(nvml.gpus());
    std::iota(gpus.begin(), gpus.end(), 0);
    return gpus;
  }
  for (absl::string_view name : absl::StrSplit(visible, ',', absl::SkipWhitespace())) {
    name = absl::StripAsciiWhitespace(name);
    int gpu = 0;
    if (absl::StartsWith(name, "GPU-")) {
      FSDPD_ASSIGN_OR_RETURN(gpu, nvml.FindByUuid(name));
      gpus.push_back(gpu);
    } else if (absl::SimpleAtoi(name, &gpu) && gpu >= 0 && gpu < nvml.gpus()) {
      gpus.push_back(gpu);
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("CUDA_VISIBLE_DEVICES=", visible, ": '", name, "' is not a GPU of this node"));
    }
  }
  return gpus;
}

}  // namespace fsdpd
