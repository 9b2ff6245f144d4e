#include "fsdp/telemetry/kernel_recorder.h"

#include <absl/strings/str_cat.h>
#include <absl/time/clock.h>
#include <cupti.h>
#include <cxxabi.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace fsdpd {
namespace {

constexpr char kLibrary[] = "libcupti.so.13";

// CUPTI delivers a buffer when it is full: some hundred kernels.
constexpr size_t kBufferBytes = 128 << 10;

// Kernels of templates have names of kilobytes, which differ near the start.
constexpr size_t kMostNameBytes = 120;

constexpr absl::Duration kPoll = absl::Milliseconds(20);

constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                         CUPTI_ACTIVITY_KIND_MEMCPY2, CUPTI_ACTIVITY_KIND_MEMSET};

const char* CopyName(uint8_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
      return "copy, host to device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
      return "copy, device to host";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD:
      return "copy on the device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_PTOP:
      return "copy to another device";
    default:
      return "copy";
  }
}

std::string Demangled(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), std::free);
  std::string whole = status == 0 && text != nullptr ? text.get() : name;
  if (whole.size() > kMostNameBytes) whole.replace(kMostNameBytes - 3, std::string::npos, "...");
  return whole;
}

void RequestBuffer(uint8_t** buffer, size_t* bytes, size_t* most_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(ACTIVITY_RECORD_ALIGNMENT, kBufferBytes));
  *bytes = *buffer == nullptr ? 0 : kBufferBytes;
  *most_records = 0;  // As many as fit.
}

}  // namespace

struct KernelRecorder::Cupti {
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks;
  decltype(&cuptiActivityEnable) enable;
  decltype(&cuptiActivityDisable) disable;
  decltype(&cuptiActivityFlushAll) flush;
  decltype(&cuptiActivityGetNextRecord) next;
  decltype(&cuptiGetResultString) result_string;

  absl::Status Failed(const char* call, CUptiResult result) const {
    const char* text = nullptr;
    if (result_string(result, &text) != CUPTI_SUCCESS || text == nullptr) text = "an unknown error";
    return absl::UnavailableError(absl::StrCat(kLibrary, ": ", call, ": ", text));
  }

  static void Take(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid_bytes) {
    KernelRecorder& recorder = Process();
    CUpti_Activity* activity = nullptr;
    while (valid_bytes > 0 && the_one->next(buffer, valid_bytes, &activity) == CUPTI_SUCCESS) AddOf(activity);
    std::free(buffer);
    MutexLock lock(&recorder.mutex_);
    recorder.changed_.SignalAll();
  }

  template <typename Activity>
  static void Add(const CUpti_Activity* record, DeviceActivity::Kind kind, const char* name, uint64_t bytes) {
    const auto& activity = *reinterpret_cast<const Activity*>(record);
    Process().Add(static_cast<int>(activity.deviceId), name,
                  {kind, nullptr, activity.streamId, static_cast<int64_t>(activity.start),
                   static_cast<int64_t>(activity.end), static_cast<int64_t>(bytes)});
  }

  template <typename Activity>
  static void AddCopy(const CUpti_Activity* record) {
    const auto& copy = *reinterpret_cast<const Activity*>(record);
    Add<Activity>(record, DeviceActivity::Kind::kCopy, CopyName(copy.copyKind), copy.bytes);
  }

  static void AddOf(const CUpti_Activity* record) {
    using Kind = DeviceActivity::Kind;
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL || record->kind == CUPTI_ACTIVITY_KIND_KERNEL) {
      const char* const name = reinterpret_cast<const CUpti_ActivityKernel10*>(record)->name;
      Add<CUpti_ActivityKernel10>(record, Kind::kKernel, name != nullptr ? name : "kernel", 0);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
      AddCopy<CUpti_ActivityMemcpy6>(record);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY2) {
      AddCopy<CUpti_ActivityMemcpyPtoP4>(record);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
      const uint64_t bytes = reinterpret_cast<const CUpti_ActivityMemset4*>(record)->bytes;
      Add<CUpti_ActivityMemset4>(record, Kind::kFill, "fill", bytes);
    }
  }

  static Cupti* the_one;  // Set before CUPTI may call back.
};

KernelRecorder::Cupti* KernelRecorder::Cupti::the_one = nullptr;

KernelRecorder& KernelRecorder::Process() {
  // Never destroyed: CUPTI may call back while the process exits.
  static auto* const recorder = new KernelRecorder();
  return *recorder;
}

absl::Status KernelRecorder::Load() {
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return absl::UnavailableError(absl::StrCat("no CUPTI: ", dlerror()));
  auto cupti = std::make_unique<Cupti>();
  bool all = true;
  const auto find = [&](auto* function, const char* name) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library, name));
    all = all && *function != nullptr;
  };
  find(&cupti->register_callbacks, "cuptiActivityRegisterCallbacks");
  find(&cupti->enable, "cuptiActivityEnable");
  find(&cupti->disable, "cuptiActivityDisable");
  find(&cupti->flush, "cuptiActivityFlushAll");
  find(&cupti->next, "cuptiActivityGetNextRecord");
  find(&cupti->result_string, "cuptiGetResultString");
  if (!all) return absl::UnavailableError(absl::StrCat(kLibrary, " lacks a function"));
  const CUptiResult result = cupti->register_callbacks(&RequestBuffer, &Cupti::Take);
  if (result != CUPTI_SUCCESS) return cupti->Failed("cuptiActivityRegisterCallbacks", result);
  Cupti::the_one = cupti_ = cupti.release();
  return absl::OkStatus();
}

absl::Status KernelRecorder::Start() {
  MutexLock lock(&cupti_mutex_);
  if (cupti_ == nullptr) FSDPD_RETURN_IF_ERROR(Load());
  for (const CUpti_ActivityKind kind : kKinds) {
    const CUptiResult result = users_ > 0 ? CUPTI_SUCCESS : cupti_->enable(kind);
    if (result == CUPTI_SUCCESS) continue;
    for (const CUpti_ActivityKind each : kKinds) cupti_->disable(each);
    return cupti_->Failed("cuptiActivityEnable", result);
  }
  ++users_;
  return absl::OkStatus();
}

void KernelRecorder::Stop() {
  MutexLock lock(&cupti_mutex_);
  FSDPD_CHECK(users_ > 0);
  if (--users_ > 0) return;
  for (const CUpti_ActivityKind kind : kKinds) cupti_->disable(kind);
}

void KernelRecorder::Add(int device, const std::string& name, Record record) {
  if (record.begin_unix_nanos <= 0 || record.end_unix_nanos < record.begin_unix_nanos)
    return;  // Not complete.
  MutexLock lock(&mutex_);
  Records& of = records_[device];
  if (of.kept.size() >= kMostRecords) {
    of.forgotten_until_unix_nanos = std::max(of.forgotten_until_unix_nanos, of.kept.front().begin_unix_nanos);
    of.kept.pop_front();
  }
  record.name = &*names_.insert(name).first;
  of.kept.push_back(record);
}

std::vector<DeviceActivity> KernelRecorder::Take(int device, int64_t begin_unix_nanos, int64_t end_unix_nanos,
                                                 absl::Duration longest) {
  const Cupti* cupti = nullptr;
  {
    MutexLock lock(&cupti_mutex_);
    cupti = cupti_;
  }
  if (cupti == nullptr) return {};
  const absl::Time deadline = absl::Now() + longest;
  const auto is_later = [&](const Record& record) { return record.begin_unix_nanos >= end_unix_nanos; };
  for (;;) {
    cupti->flush(0);  // Calls back.
    MutexLock lock(&mutex_);
    const std::deque<Record>& records = records_[device].kept;
    if (std::any_of(records.rbegin(), records.rend(), is_later) || absl::Now() >= deadline) break;
    changed_.WaitFor(&mutex_, absl::ToChronoNanoseconds(kPoll));
  }
  std::vector<DeviceActivity> taken;
  bool tells_of_lost = false;
  {
    MutexLock lock(&mutex_);
    Records& of = records_[device];
    for (const Record& record : of.kept) {
      if (record.begin_unix_nanos < begin_unix_nanos || is_later(record)) continue;
      taken.push_back({record.kind, Demangled(*record.name), record.stream, record.begin_unix_nanos,
                       record.end_unix_nanos, record.bytes});
    }
    const auto is_old = [&](const Record& record) { return record.begin_unix_nanos < begin_unix_nanos; };
    of.kept.erase(std::remove_if(of.kept.begin(), of.kept.end(), is_old), of.kept.end());
    if (of.forgotten_until_unix_nanos >= begin_unix_nanos)
      tells_of_lost = !std::exchange(lost_reported_, true);
  }
  if (tells_of_lost) LogWarning("dropped the first kernels of a step limit=%d", kMostRecords);
  std::sort(taken.begin(), taken.end(), [](const DeviceActivity& a, const DeviceActivity& b) {
    return a.begin_unix_nanos < b.begin_unix_nanos;
  });
  return taken;
}

}  // namespace fsdpd
