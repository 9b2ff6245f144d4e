#include "client/text/node_text.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>

#include "base/spec_text/enum_name.h"
#include "base/text.h"
#include "client/spec/spec_print.h"
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

std::string StatusText(const v1::Node& node) {
  const std::string gone = node.left() ? "left" : node.not_ready() ? "not-ready" : "lost";
  std::string text = node.connected() ? "ready" : gone;
  const v1::Cordon& cordon = node.cordon();
  const char* const closed = !cordon.has_drain()                     ? "cordoned"
                             : cordon.drain().empty_unix_nanos() > 0 ? "drained"
                                                                     : "draining";
  if (node.has_cordon()) text = node.connected() ? closed : absl::StrCat(gone, ", ", closed);
  if (!node.connected() || node.stalled_jobs().empty()) return text;
  return absl::StrCat(text, ", no step of ", absl::StrJoin(node.stalled_jobs(), ", "));
}

std::string CordonText(const v1::Node& node, absl::Time now) {
  const v1::Cordon& cordon = node.cordon();
  return absl::StrCat(node.name(), " is cordoned", cordon.automatic() ? " by the coordinator" : "", " since ",
                      TimeText(cordon.unix_nanos(), now), cordon.reason().empty() ? "" : ": ",
                      OneLine(cordon.reason()), "\n");
}

std::string VerdictText(const v1::Node& node) {
  if (node.in_preflight()) return "running";
  if (!node.has_preflight()) return "-";
  if (node.preflight().violations().empty()) return "passed";
  return node.preflight().accepted() ? "accepted" : "not passed";
}

}  // namespace

absl::Time CoordinatorTimeOf(const v1::ListNodesResponse& response, absl::Time here) {
  return response.unix_nanos() == 0 ? here : absl::FromUnixNanos(response.unix_nanos());
}

std::string NodeTable(const std::vector<v1::Node>& nodes, absl::Time now, int width, bool wide) {
  std::vector<std::string> head = {"NAME",        "STATUS", "DEVICE",  "FREE",
                                   "MEMORY/SLOT", "SEEN",   "METRICS", "VERSION"};
  if (wide) head.insert(head.end(), {"HOST MEMORY", "ADDRESS", "PREFLIGHT", "NVLINK DOMAIN", "LABELS"});
  TextTable table(head);
  for (const v1::Node& node : nodes) {
    const bool known = v1::Device_IsValid(node.device()) && node.device() != v1::DEVICE_UNSPECIFIED;
    std::vector<std::string> row = {
        node.name(),
        StatusText(node),
        known ? ShortEnumName(node.device()) : "-",
        absl::StrCat(node.free_slots(), "/", node.slots()),
        HumanBytes(node.memory_bytes_per_slot()),
        node.last_seen_unix_nanos() == 0 ? "-" : AgeText(node.last_seen_unix_nanos(), now) + " ago",
        OrDash(node.metrics_endpoint()),
        OrDash(node.version())};
    if (wide)
      row.insert(row.end(), {node.host_memory_bytes() > 0 ? HumanBytes(node.host_memory_bytes()) : "-",
                             OrDash(node.address()), VerdictText(node), OrDash(OneLine(node.nvlink_domain())),
                             OrDash(OneLine(LabelText(node.labels(), ",")))});
    table.Add(row);
  }
  std::string text = table.Render(0, width);
  for (const v1::Node& node : nodes) {
    if (node.has_cordon()) text += CordonText(node, now);
    if (!node.revoked_serial().empty())
      absl::StrAppend(&text, node.name(), ": the agent's certificate is revoked (serial number ",
                      OneLine(node.revoked_serial()), "); give the agent a new one\n");
  }
  return text;
}

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
