#include "coordinator/nodes/preflight_floors.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

namespace fsdpd {
namespace {

struct Measure {
  const char* name;
  const char* label;
  const char* unit;
  double units;  // Factor from `unit` to the unit of PreflightDevice.
};
constexpr Measure kProduct = {"matmul_tflops", "product rate", "TFLOP/s", 1e12};
constexpr Measure kMemory = {"memory_gb_per_s", "memory rate", "GB/s", 1e9};
constexpr Measure kRing = {"all_gather_gb_per_s", "ring bandwidth", "GB/s", 1e9};
constexpr Measure kPair = {"pair_gb_per_s", "pair bandwidth", "GB/s", 1e9};
constexpr Measure kMeasures[] = {kProduct, kMemory, kRing, kPair};

// About 80% of the rate of one healthy GPU at operating temperature, and 60% of NCCL's rate between several.
struct KnownFloor {
  const char* device;
  const Measure& measure;
  double value;
};
constexpr KnownFloor kKnown[] = {
    // Measured: products 676 TFLOP/s at the power limit, memory copy 4.2 TB/s, all-gathers of 64 MB 300 GB/s.
    {"NVIDIA H200", kProduct, 540},
    {"NVIDIA H200", kMemory, 3200},
    {"NVIDIA H200", kRing, 180},
    {"NVIDIA H200", kPair, 150},
    // From the data sheet: the same chip and links, with memory of 3.35 TB/s instead of 4.8.
    {"NVIDIA H100 80GB HBM3", kProduct, 480},
    {"NVIDIA H100 80GB HBM3", kMemory, 2200},
    {"NVIDIA H100 80GB HBM3", kRing, 180},
    {"NVIDIA H100 80GB HBM3", kPair, 150},
};

constexpr double kOthersMemory = 0.1;  // Fraction of the card's memory that other processes may use.

std::optional<double> FloorOf(const std::string& device, const Measure& measure,
                              const std::vector<PreflightFloor>& floors) {
  // The last one wins, as with repeated flags.
  for (auto floor = floors.rbegin(); floor != floors.rend(); ++floor) {
    if (absl::EqualsIgnoreCase(floor->device, device) && floor->measure == measure.name) return floor->value;
  }
  for (const KnownFloor& known : kKnown) {
    if (absl::EqualsIgnoreCase(known.device, device) && known.measure.name == measure.name)
      return known.value;
  }
  return std::nullopt;
}

std::string Number(double value) {
  return value < 10 ? absl::StrFormat("%.3g", value) : absl::StrFormat("%.0f", value);
}

// Explains a low product rate: clock and slowdown reasons.
std::string SlowdownText(const v1::PreflightDevice& device) {
  std::string text;
  if (device.sm_clock_hertz() > 0)
    absl::StrAppendFormat(&text, " at %.0f MHz", device.sm_clock_hertz() / 1e6);
  for (const auto& slowdown : device.slowdowns())
    absl::StrAppendFormat(&text, "%s %s for %.1f s",
                          text.find("slowed") == std::string::npos ? " slowed down by" : ",",
                          slowdown.reason(), slowdown.seconds());
  return text;
}

void AddMissedRates(const v1::PreflightDevice& device, const std::vector<PreflightFloor>& floors,
                    std::vector<std::string>* missed) {
  const auto rate = [&](const Measure& measure, double measured, const std::string& more = "") {
    const std::optional<double> floor = FloorOf(device.name(), measure, floors);
    // Also true for NaN, which fails every floor.
    if (!floor.has_value() || *floor <= 0 || measured / measure.units >= *floor) return;
    missed->push_back(absl::StrCat("device ", device.device(), ": ", measure.label, " ",
                                   Number(measured / measure.units), " ", measure.unit, more, ", floor ",
                                   Number(*floor)));
  };
  rate(kProduct, device.matmul_flops(), SlowdownText(device));
  rate(kMemory, device.memory_bytes_per_second());
  if (device.pairs().empty()) return;  // The only device of its node.
  rate(kRing, device.all_gather_bytes_per_second());
  for (const auto& pair : device.pairs())
    rate(kPair, pair.bytes_per_second(), absl::StrCat(" with device ", pair.device()));
}

void AddDriverFaults(const v1::PreflightDevice& device, int most_links, std::vector<std::string>* faults) {
  const std::string prefix = absl::StrCat("device ", device.device(), ": ");
  if (device.uncorrected_ecc_errors() > 0)
    faults->push_back(absl::StrCat(prefix, device.uncorrected_ecc_errors(),
                                   " uncorrected memory errors since its driver was loaded (want 0)"));
  const double used = static_cast<double>(device.used_bytes()),
               all = static_cast<double>(device.memory_bytes());
  if (all > 0 && used > kOthersMemory * all)
    faults->push_back(
        absl::StrFormat("%s%.1f GiB of its memory in use by other processes (want at most %.1f)", prefix,
                        used / (1 << 30), kOthersMemory * all / (1 << 30)));
  if (device.has_nvlinks_up() && device.nvlinks_up() < most_links)
    faults->push_back(absl::StrCat(prefix, device.nvlinks_up(), " NVLinks are up (want ", most_links,
                                   ", as of another device)"));
}

}  // namespace

absl::StatusOr<PreflightFloor> ParsePreflightFloor(absl::string_view text) {
  const size_t equals = text.rfind('='), colon = text.rfind(':', equals);
  PreflightFloor floor;
  if (equals == absl::string_view::npos || colon == absl::string_view::npos || colon == 0)
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is not DEVICE:MEASURE=NUMBER, such as \"NVIDIA H200:matmul_tflops=540\""));
  floor.device = std::string(absl::StripAsciiWhitespace(text.substr(0, colon)));
  floor.measure = std::string(absl::StripAsciiWhitespace(text.substr(colon + 1, equals - colon - 1)));
  const absl::string_view number = absl::StripAsciiWhitespace(text.substr(equals + 1));
  if (!absl::SimpleAtod(number, &floor.value) || !std::isfinite(floor.value) || floor.value < 0)
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "': '", number, "' is not a number of at least 0"));
  std::vector<std::string> names;
  for (const Measure& measure : kMeasures) {
    if (floor.measure == measure.name) return floor;
    names.push_back(measure.name);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "'", text, "': '", floor.measure, "' is not a measure; use one of ", absl::StrJoin(names, ", ")));
}

std::vector<std::string> MissedFloors(const v1::PreflightResult& result,
                                      const std::vector<PreflightFloor>& floors) {
  std::vector<std::string> missed;
  if (!result.error().empty()) missed.push_back(result.error());
  int most_links = 0;
  for (const v1::PreflightDevice& device : result.devices())
    most_links = std::max(most_links, device.nvlinks_up());
  for (const v1::PreflightDevice& device : result.devices()) {
    AddMissedRates(device, floors, &missed);
    AddDriverFaults(device, most_links, &missed);
  }
  return missed;
}

std::string UnmatchedFloors(const v1::PreflightResult& result, const std::vector<PreflightFloor>& floors) {
  std::set<std::string> others, names;
  for (const v1::PreflightDevice& device : result.devices()) names.insert(device.name());
  for (const PreflightFloor& floor : floors) {
    const bool its = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return absl::EqualsIgnoreCase(floor.device, name);
    });
    if (!its) others.insert(floor.device);
  }
  if (others.empty() || names.empty()) return "";
  return absl::StrCat("--preflight-floor: no device of the node is called '", absl::StrJoin(others, "', '"),
                      "' (got '", absl::StrJoin(names, "', '"), "')");
}

}  // namespace fsdpd
