#include "fsdp/rank/near_cores.h"

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <optional>

#include "base/errno_status.h"

namespace fsdpd {
namespace {

// The largest number that kernels support; cpu_set_t has only 1024.
constexpr int kMostCores = 8192;
using CoreMask = std::array<cpu_set_t, kMostCores / CPU_SETSIZE>;

// "" if the file does not exist.
std::string ReadLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return std::string(absl::StripAsciiWhitespace(line));
}

// Parses "0-3,8", the kernel's format for sets of cores and nodes; empty if invalid.
std::vector<int> ParseList(const std::string& text) {
  std::vector<int> numbers;
  for (const absl::string_view part : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const std::vector<absl::string_view> ends = absl::StrSplit(part, '-');
    int first = 0, last = 0;
    if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &first) || !absl::SimpleAtoi(ends.back(), &last) ||
        first < 0 || last >= kMostCores)
      return {};
    for (int number = first; number <= last; ++number) numbers.push_back(number);
  }
  return numbers;
}

}  // namespace

NearCores FindNearCores(const std::string& sysfs, const std::string& pci_bus_id,
                        const std::vector<int>& allowed) {
  NearCores near;
  const size_t nodes = ParseList(ReadLine(sysfs + "/devices/system/node/online")).size();
  if (nodes < 2) {
    near.why_not = "the machine has one NUMA node";
    return near;
  }
  const std::string device = absl::AsciiStrToLower(pci_bus_id);
  const std::string node = ReadLine(absl::StrCat(sysfs, "/bus/pci/devices/", device, "/numa_node"));
  if (!absl::SimpleAtoi(node, &near.node) || near.node < 0) {
    near.why_not = absl::StrCat("the NUMA node of GPU ", device, " is unknown");
    return near;
  }
  const std::vector<int> there =
      ParseList(ReadLine(absl::StrCat(sysfs, "/devices/system/node/node", near.node, "/cpulist")));
  std::set_intersection(there.begin(), there.end(), allowed.begin(), allowed.end(),
                        std::back_inserter(near.cores));
  if (near.cores.empty()) {
    near.why_not = absl::StrCat("the CPU affinity of the process excludes the cores of NUMA node ", near.node,
                                " (GPU ", device, ")");
  } else if (near.cores.size() * nodes < allowed.size()) {
    near.why_not = absl::StrCat("only ", near.cores.size(), " of the process's ", allowed.size(),
                                " cores are on NUMA node ", near.node, " (GPU ", device, ")");
    near.cores.clear();
  }
  return near;
}

std::vector<int> AllowedCores() {
  CoreMask mask = {};
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof mask, mask.data()) != 0) return cores;
  for (int core = 0; core < kMostCores; ++core) {
    if (CPU_ISSET_S(core, sizeof mask, mask.data())) cores.push_back(core);
  }
  return cores;
}

absl::Status RunOn(const std::vector<int>& cores) {
  CoreMask mask = {};
  for (const int core : cores) CPU_SET_S(core, sizeof mask, mask.data());
  return sched_setaffinity(0, sizeof mask, mask.data()) == 0 ? absl::OkStatus()
                                                             : ErrnoStatus("sched_setaffinity");
}

}  // namespace fsdpd
