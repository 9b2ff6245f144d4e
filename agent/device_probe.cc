#include "agent/device_probe.h"

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>

#include "base/cgroup_memory.h"

namespace fsdpd {
namespace {

constexpr int kMaxSlots = 1024;  // Above any node; a typing mistake.
constexpr int64_t kMostReserved = int64_t{4} << 30;

std::string ReadText(const char* path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

int UsableCores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof cores, &cores) != 0) return 1;
  return std::max(1, CPU_COUNT(&cores));
}

absl::StatusOr<DeviceOffer> OfferGpus(int slots, const MachineFacts& machine) {
  if (!machine.gpus.ok()) return machine.gpus.status();
  const int count = static_cast<int>(machine.gpus->size());
  if (count == 0) return absl::UnavailableError("the NVIDIA driver lists no GPU");
  if (slots > count) {
    return absl::InvalidArgumentError(
        absl::StrCat("--slots ", slots, " is more than the ", count, " GPUs of this node"));
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
  return machine;
}

absl::StatusOr<DeviceOffer> DecideOffer(absl::string_view asked, int slots, const MachineFacts& machine) {
  if (slots < 0 || slots > kMaxSlots) {
    return absl::InvalidArgumentError(absl::StrCat("--slots ", slots, " is not within 0..", kMaxSlots));
  }
  if (asked != "cpu" && asked != "cuda" && asked != "auto") {
    return absl::InvalidArgumentError(absl::StrCat("--device ", asked, " is none of cpu, cuda, auto"));
  }
  const bool has_gpu = machine.gpus.ok() && !machine.gpus->empty();
  if (asked == "cuda" || (asked == "auto" && has_gpu)) return OfferGpus(slots, machine);
  DeviceOffer offer;
  offer.slots = slots == 0 ? machine.cores : slots;
  const int64_t reserve = std::min(machine.memory_bytes / 10, kMostReserved);
  offer.memory_bytes_per_slot = (machine.memory_bytes - reserve) / offer.slots;
  return offer;
}

}  // namespace fsdpd
