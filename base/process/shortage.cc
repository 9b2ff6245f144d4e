#include "base/process/shortage.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/string_view.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "base/process/cgroup_limits.h"
#include "base/text.h"

namespace fsdpd {
namespace {

constexpr int64_t kUsualStack = int64_t{8} << 20;
constexpr int64_t kStackOverhead = int64_t{1} << 20;  // Guard pages, and allocations since the failure.
constexpr size_t kReserve = size_t{1} << 20;

std::atomic<void*> reserve{nullptr};

// Value of "VmSize:  123 kB" in /proc/self/status. Does not allocate, since memory may be exhausted.
int64_t OwnBytes(const char* name) {
  char text[4096];
  const int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
  const ssize_t bytes = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
  if (fd >= 0) close(fd);
  text[std::max<ssize_t>(bytes, 0)] = 0;
  const char* const found = strstr(text, name);
  return found == nullptr ? 0 : strtoll(found + strlen(name), nullptr, 10) << 10;
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

int64_t StackBytes() {
  rlimit stack{};
  const bool known = getrlimit(RLIMIT_STACK, &stack) == 0 && stack.rlim_cur != RLIM_INFINITY;
  return known ? static_cast<int64_t>(stack.rlim_cur) : kUsualStack;
}

bool LacksMemoryFor(int64_t bytes) {
  const auto mapped = LimitOf(RLIMIT_AS), data = LimitOf(RLIMIT_DATA);
  return (mapped.has_value() && *mapped - OwnBytes("VmSize:") < bytes) ||
         (data.has_value() && *data - OwnBytes("VmData:") < bytes);
}

std::string WithLimits(absl::string_view what, const std::string& limits) {
  return limits.empty() ? std::string(what) : absl::StrCat(what, ": ", limits);
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
  // The kernel does not enforce it for root.
  const std::optional<int64_t> of_user = LimitOf(RLIMIT_NPROC);
  if (of_user.has_value() && geteuid() != 0)
    limits.push_back(absl::StrCat("its user may have ", *of_user, " processes and threads (ulimit -u)"));
  return absl::StrJoin(limits, ", ");
}

void KeepShortageReserve() {
  if (reserve.load() != nullptr) return;
  void* const bytes = mmap(nullptr, kReserve, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (bytes != MAP_FAILED) reserve = bytes;
}

void ReleaseShortageReserve() {
  if (void* const bytes = reserve.exchange(nullptr); bytes != nullptr) munmap(bytes, kReserve);
}

std::optional<Shortage> ShortageIn(const std::exception& error) {
  const bool of_memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  if (of_memory) ReleaseShortageReserve();
  if (of_memory) return Shortage{false, WithLimits("out of host memory", OwnMemoryLimits())};
  const auto* const system = dynamic_cast<const std::system_error*>(&error);
  // The error of std::thread if no thread can be started.
  if (system == nullptr || system->code() != std::errc::resource_unavailable_try_again) return std::nullopt;
  const int64_t stack = StackBytes();
  if (LacksMemoryFor(stack + kStackOverhead)) {
    const std::string what =
        absl::StrCat("out of host memory for a thread's stack of ", HumanBytes(stack), " (ulimit -s)");
    return Shortage{false, WithLimits(what, OwnMemoryLimits())};
  }
  const std::string limits = OwnThreadLimits();
  return Shortage{!limits.empty(), WithLimits("the system cannot start more threads", limits)};
}

}  // namespace fsdpd
