// NVIDIA's management library, found at run time: the same programs run on nodes without a driver. NVML opens
// no CUDA context, so it takes no device memory from ranks.
//
// Thread safety: const methods from any thread; the library locks by itself.
#pragma once

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace fsdpd {

// What does not change while processes come and go.
struct GpuMemory {
  int64_t total_bytes = 0;
  int64_t reserved_bytes = 0;  // The driver's own share of the total.
};

// Why a clock is lower than it could be. Several may hold at once.
enum class GpuSlowdown { kPowerCap, kHardware, kSoftwareThermal, kHardwareThermal, kPowerBrake };
constexpr int kGpuSlowdowns = 5;
const char* NameOf(GpuSlowdown slowdown);  // "power_cap"

// What a GPU says of itself at one moment. Empty: this card or driver does not tell.
struct GpuReading {
  std::optional<double> power_watts;
  std::optional<double> energy_joules;  // Since the driver was loaded.
  std::optional<double> sm_clock_hertz;
  std::optional<std::array<bool, kGpuSlowdowns>> slowdowns;
  std::optional<double> temperature_celsius;
  std::optional<int64_t> used_bytes;            // By all processes, and the driver's own share.
  std::optional<int64_t> corrected_ecc_errors;  // Since the driver was loaded, as the next.
  std::optional<int64_t> uncorrected_ecc_errors;
};

class Nvml {
 public:
  // UNAVAILABLE when there is no driver, or it fails; its message says which.
  static absl::StatusOr<std::unique_ptr<Nvml>> Open();
  ~Nvml();

  int gpus() const { return static_cast<int>(devices_.size()); }  // By NVML's index.
  absl::StatusOr<GpuMemory> Memory(int gpu) const;
  GpuReading Read(int gpu) const;  // May take milliseconds: some cards' energy does.
  // These take microseconds. Power is of now alone, where the card tells; over the last second otherwise.
  std::optional<double> InstantPowerWatts(int gpu) const;
  std::optional<double> SmClockHertz(int gpu) const;
  std::optional<int64_t> UsedBytes(int gpu) const;

  // How many of its NVLinks are up. Empty: it has none, or does not tell.
  std::optional<int> NvLinksUp(int gpu) const;

  // The GPU of this PCI address, "0000:3b:00.0", or UUID, "GPU-1a2b..."; NOT_FOUND.
  absl::StatusOr<int> FindByBusId(absl::string_view bus_id) const;
  absl::StatusOr<int> FindByUuid(absl::string_view uuid) const;

  // Critical errors (XID) that came since the last call, counted by GPU, but for those that a program
  // makes or that follow its end: they say nothing of the card. Empty: they are not told.
  std::optional<std::vector<int64_t>> TakeXids();

 private:
  struct Functions;
  Nvml();
  absl::Status Load();
  void Watch();

  std::unique_ptr<Functions> call_;
  void* library_ = nullptr;
  bool initialised_ = false;
  std::vector<void*> devices_;
  void* events_ = nullptr;  // Null: XIDs are not told.
};

// One entry per GPU, by index. Errors of Nvml::Open.
absl::StatusOr<std::vector<GpuMemory>> ReadGpus();

// The GPUs that CUDA shows this process, in CUDA's order, by NVML's index: all of them, or those that
// CUDA_VISIBLE_DEVICES names (`visible`; null where it is not set). INVALID_ARGUMENT: it names something
// else.
absl::StatusOr<std::vector<int>> VisibleGpus(const Nvml& nvml, const char* visible);

}  // namespace fsdpd
