#include "base/shortage.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <new>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "base/cgroup_limits.h"
#include "base/text.h"

namespace fsdpd {
namespace {

// Of "VmSize:	  123 kB" in /proc/self/status.
int64_t OwnBytes(const char* name) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    int64_t kibibytes = 0;
    if (words.size() >= 2 && words[0] == name && absl::SimpleAtoi(words[1], &kibibytes))
      return kibibytes << 10;
  }
  return 0;
}

std::optional<int64_t> LimitOf(__rlimit_resource resource) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return static_cast<int64_t>(limit.rlim_cur);
}

std::vector<std::string> MemoryLimits() {
  std::vector<std::string> limits;
  if (const auto mapped = LimitOf(RLIMIT_AS)) {
    limits.push_back(absl::StrCat("this process may map ", HumanBytes(*mapped),
                                  " (ulimit -v) and has mapped ", HumanBytes(OwnBytes("VmSize:"))));
  }
  if (const auto data = LimitOf(RLIMIT_DATA)) {
    limits.push_back(absl::StrCat("this process may have ", HumanBytes(*data),
                                  " of data (ulimit -d) and has ", HumanBytes(OwnBytes("VmData:"))));
  }
  return limits;
}

std::string WithLimits(const char* what, const std::string& limits) {
  return limits.empty() ? what : absl::StrCat(what, ": ", limits);
}

}  // namespace

std::string OwnMemoryLimits() { return absl::StrJoin(MemoryLimits(), ", "); }

std::string OwnThreadLimits(const std::string& root) {
  std::vector<std::string> limits;
  if (const auto tasks = TightestCgroupOfTasks(root)) {
    limits.push_back(absl::StrCat("of ", tasks->limit,
                                  " processes and threads that its control group may have (pids.max), ",
                                  tasks->running, " run"));
  }
  // The kernel does not count those of root.
  const std::optional<int64_t> of_user = LimitOf(RLIMIT_NPROC);
  if (of_user.has_value() && geteuid() != 0)
    limits.push_back(absl::StrCat("its user may have ", *of_user, " processes and threads (ulimit -u)"));
  for (std::string& each : MemoryLimits()) limits.push_back(std::move(each));
  return absl::StrJoin(limits, ", ");
}

std::optional<Shortage> ShortageIn(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr)
    return Shortage{false, WithLimits("out of host memory", OwnMemoryLimits())};
  const auto* const system = dynamic_cast<const std::system_error*>(&error);
  // What std::thread throws where there is none.
  if (system != nullptr && system->code() == std::errc::resource_unavailable_try_again)
    return Shortage{true, WithLimits("the system starts no more threads", OwnThreadLimits())};
  return std::nullopt;
}

}  // namespace fsdpd
