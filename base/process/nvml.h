// Wrapper of NVML, the management library of NVIDIA, loaded at run time: the same programs run on nodes
// without a driver. NVML creates no CUDA context, so it takes no device memory from ranks.
//
// Thread safety: const methods from any thread; the library has its own locks.
#pragma once

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace fsdpd {

// Memory that does not depend on running processes.
struct GpuMemory {
  int64_t total_bytes = 0;
  int64_t reserved_bytes = 0;  // Part of the total that the driver reserves.
};

// Reasons for a reduced clock rate. Several may apply at the same time.
enum class GpuSlowdown { kPowerCap, kHardware, kSoftwareThermal, kHardwareThermal, kPowerBrake };
constexpr int kGpuSlowdowns = 5;
const char* NameOf(GpuSlowdown slowdown);  // "power_cap"

// Readings of a GPU at one moment. Empty: not supported by this GPU or driver.
struct GpuReading {
  std::optional<double> power_watts;
  std::optional<double> energy_joules;  // Since the driver was loaded.
  std::optional<double> sm_clock_hertz;
  std::optional<std::array<bool, kGpuSlowdowns>> slowdowns;
  std::optional<double> temperature_celsius;
  std::optional<int64_t> used_bytes;            // By all processes, plus the reserve of the driver.
  std::optional<int64_t> corrected_ecc_errors;  // Since the driver was loaded, like the next.
  std::optional<int64_t> uncorrected_ecc_errors;
};

class Nvml {
 public:
  // UNAVAILABLE if there is no driver, or it fails, with the reason.
  static absl::StatusOr<std::unique_ptr<Nvml>> Open();
  ~Nvml();

  int gpus() const { return static_cast<int>(devices_.size()); }  // Number of GPUs, by NVML index.
  absl::StatusOr<GpuMemory> Memory(int gpu) const;
  GpuReading Read(int gpu) const;  // May take milliseconds, for example for energy.
  // These take microseconds. Power is instantaneous if the GPU supports it, else averaged over the last
  // second.
  std::optional<double> InstantPowerWatts(int gpu) const;
  std::optional<double> SmClockHertz(int gpu) const;
  std::optional<int64_t> UsedBytes(int gpu) const;

  // Number of active NVLinks. Empty: it has none, or does not support the query.
  std::optional<int> NvLinksUp(int gpu) const;

  // The GPU with this PCI address, "0000:3b:00.0", or UUID, "GPU-1a2b..."; NOT_FOUND.
  absl::StatusOr<int> FindByBusId(absl::string_view bus_id) const;
  absl::StatusOr<int> FindByUuid(absl::string_view uuid) const;

  // Critical errors (XID) since the last call, by GPU, without those that a program causes or that follow its
  // exit: they do not indicate a hardware fault. Empty: not supported.
  std::optional<std::vector<int64_t>> TakeXids();

 private:
  struct Functions;
  Nvml();
  absl::Status Load();
  absl::StatusOr<int> Find(int (*find)(const char*, void**), absl::string_view name) const;
  void Watch();

  std::unique_ptr<Functions> call_;
  void* library_ = nullptr;
  bool initialized_ = false;
  std::vector<void*> devices_;
  void* events_ = nullptr;  // Null: XIDs are not supported.
};

// One entry per GPU, by index. Errors of Nvml::Open.
absl::StatusOr<std::vector<GpuMemory>> ReadGpus();

// The GPUs that CUDA shows to this process, in the order of CUDA, as NVML indices: all of them, or those in
// CUDA_VISIBLE_DEVICES (`visible`; null if it is not set). INVALID_ARGUMENT for an unknown entry.
absl::StatusOr<std::vector<int>> VisibleGpus(const Nvml& nvml, const char* visible);

}  // namespace fsdpd
