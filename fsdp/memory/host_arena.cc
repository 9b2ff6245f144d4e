#include "fsdp/memory/host_arena.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <errno.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/cgroup_limits.h"
#include "base/check.h"
#include "base/errno_status.h"
#include "base/parallel_for.h"
#include "base/shortage.h"
#include "base/text.h"
#include "fsdp/memory/cuda_pin.h"

namespace fsdpd {
namespace {

// Made real so much at a time, and what is left of the node looked at in between.
constexpr int64_t kStretch = int64_t{1} << 30;
// Four threads populate 3 times as fast as one; more do not help
// (docs/bench/2026-11-28-launch-and-restart.md).
constexpr int kThreads = 4;
constexpr int64_t kPart = kStretch / kThreads;

// What the kernel would give without swapping; without bound where it does not say.
int64_t AvailableBytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    int64_t kibibytes = 0;
    if (words.size() >= 2 && words[0] == "MemAvailable:" && absl::SimpleAtoi(words[1], &kibibytes))
      return kibibytes << 10;
  }
  return std::numeric_limits<int64_t>::max();
}

absl::Status CheckAvailable(const char* what, int64_t bytes, int64_t missing, const std::string& root) {
  const int64_t available = AvailableBytes();
  const std::optional<CgroupMemory> group = TightestCgroup(root);
  if (missing <= available && (!group.has_value() || missing <= group->left_bytes)) return absl::OkStatus();
  const std::string has =
      group.has_value() && group->left_bytes < available
          ? absl::StrCat("the memory limit of this rank's control group, ", HumanBytes(group->limit_bytes),
                         ", leaves ", HumanBytes(std::max<int64_t>(0, group->left_bytes)))
          : absl::StrCat("the node has ", HumanBytes(available), " available");
  return absl::ResourceExhaustedError(
      absl::StrCat(what, " take ", HumanBytes(bytes), " of host memory on this rank, ", HumanBytes(missing),
                   " of it still missing, and ", has,
                   ": fewer ranks on a node, no checkpoints, or nothing offloaded take less"));
}

absl::Status MakeReal(const char* what, std::byte* data, int64_t bytes, const std::string& root) {
  for (int64_t done = 0; done < bytes; done += kStretch) {
    FSDPD_RETURN_IF_ERROR(CheckAvailable(what, bytes, bytes - done, root));
    const int64_t end = std::min(done + kStretch, bytes);
    FSDPD_RETURN_IF_ERROR(ParallelFor((end - done + kPart - 1) / kPart, kThreads, [&](size_t part) {
      const int64_t begin = done + static_cast<int64_t>(part) * kPart;
      const auto size = static_cast<size_t>(std::min(kPart, end - begin));
      // Before Linux 5.14 there is no such advice.
      if (madvise(data + begin, size, MADV_POPULATE_WRITE) != 0) std::memset(data + begin, 0, size);
      return absl::OkStatus();
    }));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<HostArena>> HostArena::Make(int64_t bytes, DeviceKind device, const char* what,
                                                           const std::string& root) {
  FSDPD_CHECK(bytes >= 0);
  std::unique_ptr<HostArena> arena(new HostArena(bytes));
  if (bytes == 0) return arena;
  FSDPD_RETURN_IF_ERROR(CheckAvailable(what, bytes, bytes, root));
  void* const data =
      mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    const int error = errno;
    const std::string limits = OwnMemoryLimits();
    return absl::ResourceExhaustedError(absl::StrCat(
        what, ": ", ErrnoText(absl::StrCat("reserve ", HumanBytes(bytes), " of host memory"), error),
        limits.empty() ? "" : ": ", limits));
  }
  arena->data_ = static_cast<std::byte*>(data);
  madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // A wish.
  FSDPD_RETURN_IF_ERROR(MakeReal(what, arena->data_, bytes, root));
  if (device == DeviceKind::kCuda) {
    FSDPD_RETURN_IF_ERROR(PinForCuda(data, bytes));
    arena->pinned_ = true;
  }
  return arena;
}

HostArena::~HostArena() {
  if (pinned_) UnpinForCuda(data_);
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(bytes_));
}

}  // namespace fsdpd
