#include "client/text/node_text.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "client/text/job_text.h"
#include "client/text/text_table.h"

namespace fsdpd {
namespace {

// "676 TFLOP/s", "45.1 GFLOP/s"; "-" if not measured.
std::string RateText(double rate, const char* unit) {
  if (!(rate > 0)) return "-";
  constexpr const char* kPrefixes[] = {"", "k", "M", "G", "T", "P"};
  int prefix = 0;
  for (; rate >= 1000 && prefix < 5; ++prefix) rate /= 1000;
  if (rate < 100) return absl::StrFormat("%.3g %s%s", rate, kPrefixes[prefix], unit);
  return absl::StrFormat("%.0f %s%s", rate, kPrefixes[prefix], unit);
}

std::string SlowestPair(const v1::PreflightDevice& device) {
  const auto slowest = std::min_element(
      device.pairs().begin(), device.pairs().end(),
      [](const auto& a, const auto& b) { return a.bytes_per_second() < b.bytes_per_second(); });
  if (slowest == device.pairs().end()) return "-";
  return absl::StrCat(RateText(slowest->bytes_per_second(), "B/s"), " with ", slowest->device());
}

// Properties that the driver (NVML) reports.
std::string DriverText(const v1::PreflightDevice& device) {
  std::string text;
  const auto add = [&](const std::string& words) { absl::StrAppend(&text, text.empty() ? "" : ", ", words); };
  if (device.sm_clock_hertz() > 0) add(absl::StrFormat("%.0f MHz", device.sm_clock_hertz() / 1e6));
  for (const auto& slowdown : device.slowdowns())
    add(absl::StrFormat("%s %.1f s", OneLine(slowdown.reason()), slowdown.seconds()));
  if (device.has_nvlinks_up()) add(absl::StrCat(device.nvlinks_up(), " NVLinks"));
  if (device.has_uncorrected_ecc_errors()) add(absl::StrCat(device.uncorrected_ecc_errors(), " ECC errors"));
  if (device.memory_bytes() > 0)
    add(absl::StrCat(HumanBytes(device.memory_bytes() - device.used_bytes()), " free"));
  return text.empty() ? "-" : text;
}

std::string AgeText(int64_t unix_nanos, absl::Time now) {
  const double seconds = absl::ToDoubleSeconds(now - absl::FromUnixNanos(unix_nanos));
  return HumanSeconds(std::max(0.0, std::floor(seconds)));
}

}  // namespace

std::string PreflightText(const v1::Node& node, absl::Time now) {
  const v1::NodePreflight& preflight = node.preflight();
  if (!node.has_preflight()) return absl::StrCat(node.name(), " has no preflight result yet\n");
  const char* const verdict = preflight.violations().empty() ? " has passed its preflight "
                              : preflight.accepted() ? " has not passed its preflight, which was accepted, "
                                                     : " has not passed its preflight ";
  std::string text = absl::StrCat(node.name(), verdict, AgeText(preflight.unix_nanos(), now), " ago, in ",
                                  HumanSeconds(preflight.result().seconds()), "\n");
  for (const std::string& fault : preflight.violations()) absl::StrAppend(&text, "  ", OneLine(fault), "\n");
  if (preflight.result().devices().empty()) return text;
  TextTable table({"DEVICE", "NAME", "PRODUCTS", "MEMORY", "RING", "SLOWEST PAIR", "DRIVER"});
  for (const v1::PreflightDevice& device : preflight.result().devices()) {
    table.Add({absl::StrCat(device.device()), OneLine(device.name()),
               RateText(device.matmul_flops(), "FLOP/s"), RateText(device.memory_bytes_per_second(), "B/s"),
               RateText(device.all_gather_bytes_per_second(), "B/s"), SlowestPair(device),
               DriverText(device)});
  }
  return text + table.Render(2);
}

std::string DescribeNode(const v1::Node& node, absl::Time now) {
  std::string text = NodeTable({node}, now);
  if (node.in_preflight()) absl::StrAppend(&text, node.name(), " is in preflight\n");
  if (!node.unconfirmed_jobs().empty())
    absl::StrAppend(&text, node.name(), " was lost with ranks of ",
                    OneLine(absl::StrJoin(node.unconfirmed_jobs(), ", ")), ", which may still run\n");
  return text + PreflightText(node, now);
}

}  // namespace fsdpd
