#include "agent/gpu/device_probe.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>
#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <limits>

#include "base/process/cgroup_limits.h"
#include "base/process/text_files.h"

namespace fsdpd {
namespace {

constexpr int kMaxSlots = 1024;  // More than any node has; catches typing errors.
constexpr int64_t kMaxReserve = int64_t{4} << 30;

int UsableCores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof cores, &cores) != 0) return 1;
  return std::max(1, CPU_COUNT(&cores));
}

std::string WhyNoGpu(const MachineFacts& machine) {
  return machine.gpus.ok() ? "the NVIDIA driver lists no GPU" : std::string(machine.gpus.status().message());
}

int64_t MemoryForRanks(const MachineFacts& machine) {
  return machine.memory_bytes - std::min(machine.memory_bytes / 10, kMaxReserve);
}

absl::StatusOr<DeviceOffer> OfferGpus(int slots, const MachineFacts& machine) {
  const int count = machine.gpus.ok() ? static_cast<int>(machine.gpus->size()) : 0;
  if (count == 0) return absl::UnavailableError(absl::StrCat(WhyNoGpu(machine), " [GPUS_MISSING]"));
  if (slots == 0 && count < machine.gpus_offered) {
    return absl::UnavailableError(absl::StrCat("GPUs: some are missing (got ", count, ", want ",
                                               machine.gpus_offered, " as at the last start); set --slots ",
                                               count, " to continue without them [GPUS_MISSING]"));
  }
  if (slots > count) {
    return absl::InvalidArgumentError(absl::StrCat("--slots: more than the GPUs of this node (got ", slots,
                                                   ", want at most ", count, ") [INVALID_FLAG]"));
  }
  DeviceOffer offer;
  offer.device = v1::DEVICE_CUDA;
  offer.slots = slots == 0 ? count : slots;
  const auto used_end = machine.gpus->begin() + offer.slots;
  offer.memory_bytes_per_slot = std::numeric_limits<int64_t>::max();
  for (auto gpu = machine.gpus->begin(); gpu != used_end; ++gpu) {
    offer.memory_bytes_per_slot =
        std::min(offer.memory_bytes_per_slot, gpu->total_bytes - gpu->reserved_bytes);
  }
  offer.host_memory_bytes = MemoryForRanks(machine);
  return offer;
}

}  // namespace

int64_t ParseMemTotal(absl::string_view meminfo) {
  for (absl::string_view line : absl::StrSplit(meminfo, '\n')) {
    int64_t kib = 0;
    if (!absl::ConsumePrefix(&line, "MemTotal:") || !absl::ConsumeSuffix(&line, "kB")) continue;
    if (absl::SimpleAtoi(absl::StripAsciiWhitespace(line), &kib)) return kib << 10;
  }
  return 0;
}

MachineFacts ProbeMachine() {
  MachineFacts machine;
  machine.cores = UsableCores();
  machine.memory_bytes = ParseMemTotal(ReadText("/proc/meminfo"));
  machine.memory_bytes = std::min(machine.memory_bytes, CgroupMemoryLimit().value_or(machine.memory_bytes));
  machine.gpus = ReadGpus();
  machine.gpus_on_bus = CountGpusOnBus("/sys/bus/pci/devices");
  return machine;
}

std::string GpusOfferedPath(absl::string_view work_dir) { return absl::StrCat(work_dir, "/gpus"); }

int ReadGpusOffered(absl::string_view work_dir) {
  int gpus = 0;
  const std::string text = ReadText(GpusOfferedPath(work_dir));
  return absl::SimpleAtoi(absl::StripAsciiWhitespace(text), &gpus) ? std::max(0, gpus) : 0;
}

int CountGpusOnBus(const std::string& devices) {
  int gpus = 0;
  std::error_code none;  // Ignored: machines without PCI lack this directory.
  for (const auto& device : std::filesystem::directory_iterator(devices, none)) {
    const std::string directory = device.path().string();
    // PCI class 03 is display and 3D controllers; an NVSwitch bridge has another class.
    gpus += absl::StartsWith(ReadText(directory + "/vendor"), "0x10de") &&
            absl::StartsWith(ReadText(directory + "/class"), "0x03");
  }
  return gpus;
}

absl::StatusOr<DeviceOffer> DecideOffer(absl::string_view asked, int slots, const MachineFacts& machine) {
  if (slots < 0 || slots > kMaxSlots) {
    return absl::InvalidArgumentError(
        absl::StrCat("--slots: out of range (got ", slots, ", want 0..", kMaxSlots, ") [INVALID_FLAG]"));
  }
  if (asked != "cpu" && asked != "cuda" && asked != "auto") {
    return absl::InvalidArgumentError(
        absl::StrCat("--device: invalid value (got ", asked, ", want cpu, cuda or auto) [INVALID_FLAG]"));
  }
  const bool has_gpu = machine.gpus.ok() && !machine.gpus->empty();
  if (asked == "cuda" || (asked == "auto" && has_gpu)) return OfferGpus(slots, machine);
  if (asked == "auto" && machine.gpus_offered > 0) {
    return absl::UnavailableError(absl::StrCat("GPUs: all are missing (want ", machine.gpus_offered,
                                               " as at the last start): ", WhyNoGpu(machine),
                                               "; set --device cpu to continue without them [GPUS_MISSING]"));
  }
  DeviceOffer offer;
  offer.slots = slots == 0 ? machine.cores : slots;
  offer.memory_bytes_per_slot = MemoryForRanks(machine) / offer.slots;
  return offer;
}

}  // namespace fsdpd
