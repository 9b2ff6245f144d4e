#include "fsdp/memory/host_arena.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <errno.h>
#include <sys/mman.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <new>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/errno_status.h"
#include "base/parallel_for.h"
#include "base/process/cgroup_limits.h"
#include "base/process/shortage.h"
#include "base/text.h"
#include "fsdp/torch/cuda_device.h"

namespace fsdpd {
namespace {

// Pages are populated in chunks of this size; available memory is checked in between.
constexpr int64_t kChunkBytes = int64_t{1} << 30;
// Memory that the node has used before is populated at 18 GiB/s by 4 threads, 33 GiB/s by 8 and 55 GiB/s by
// 16 (docs/bench/2026-11-29-restart-checksums-and-pages.md).
constexpr int kThreads = 8;
constexpr int64_t kThreadBytes = kChunkBytes / kThreads;
constexpr int64_t kPageBytes = 4096;  // The smallest page size.

// Memory available without swapping (MemAvailable); unlimited if the kernel does not report it.
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
          ? absl::StrCat("the memory limit of this rank's cgroup (", HumanBytes(group->limit_bytes),
                         ") leaves ", HumanBytes(std::max<int64_t>(0, group->left_bytes)))
          : absl::StrCat("the node has ", HumanBytes(available), " available");
  return absl::ResourceExhaustedError(absl::StrCat(
      what, " take ", HumanBytes(bytes), " of host memory on this rank (", HumanBytes(missing),
      " not yet allocated), but ", has, "; use fewer ranks per node, or disable checkpoints or offloading"));
}

// Writes to each page instead of calling madvise(MADV_POPULATE_WRITE), which holds the lock of the address
// space while it populates and so blocks every cudaMalloc of the process. Since Linux 6.4 page faults only
// lock one mapping.
absl::Status PopulatePages(const char* what, std::byte* data, int64_t bytes, const std::string& root,
                           const std::atomic<bool>& stopped) {
  for (int64_t done = 0; done < bytes; done += kChunkBytes) {
    if (stopped) return absl::CancelledError("no longer needed");
    FSDPD_RETURN_IF_ERROR(CheckAvailable(what, bytes, bytes - done, root));
    const int64_t end = std::min(done + kChunkBytes, bytes);
    FSDPD_RETURN_IF_ERROR(
        ParallelFor((end - done + kThreadBytes - 1) / kThreadBytes, kThreads, [&](size_t part) {
          const int64_t begin = done + static_cast<int64_t>(part) * kThreadBytes;
          for (int64_t page = begin; page < std::min(begin + kThreadBytes, end); page += kPageBytes)
            *static_cast<volatile std::byte*>(data + page) = std::byte{0};
          return absl::OkStatus();
        }));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<HostArena>> HostArena::Make(int64_t bytes, DeviceKind device, const char* what,
                                                           const std::string& root) {
  const std::atomic<bool> never{false};
  FSDPD_ASSIGN_OR_RETURN(std::unique_ptr<HostArena> arena, Populate(bytes, what, root, never));
  FSDPD_RETURN_IF_ERROR(arena->Pin(device));
  return arena;
}

absl::StatusOr<std::unique_ptr<HostArena>> HostArena::Populate(int64_t bytes, const char* what,
                                                               const std::string& root,
                                                               const std::atomic<bool>& stopped) {
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
  madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // Best effort.
  FSDPD_RETURN_IF_ERROR(PopulatePages(what, arena->data_, bytes, root, stopped));
  return arena;
}

absl::Status HostArena::Pin(DeviceKind device) {
  if (device != DeviceKind::kCuda || bytes_ == 0) return absl::OkStatus();
  FSDPD_RETURN_IF_ERROR(PinForCuda(data_, bytes_));
  pinned_ = true;
  return absl::OkStatus();
}

HostArena::~HostArena() {
  if (pinned_) UnpinForCuda(data_);
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(bytes_));
}

HostArenaFuture::HostArenaFuture(int64_t bytes, DeviceKind device, const char* what)
    : device_(device), arena_(absl::CancelledError("not populated")) {
  const auto populate = [this, bytes, what] {
    try {
      arena_ = HostArena::Populate(bytes, what, "", stopped_);
    } catch (const std::bad_alloc&) {
      arena_ = absl::ResourceExhaustedError(absl::StrCat("out of host memory for ", what));
    }
  };
  try {
    thread_ = std::thread(populate);
  } catch (const std::system_error&) {  // Thread limit.
    populate();
  }
}

HostArenaFuture::~HostArenaFuture() {
  stopped_ = true;
  if (thread_.joinable()) thread_.join();
}

absl::StatusOr<std::unique_ptr<HostArena>> HostArenaFuture::Get() {
  if (thread_.joinable()) thread_.join();
  if (arena_.ok()) FSDPD_RETURN_IF_ERROR((*arena_)->Pin(device_));
  return std::move(arena_);
}

}  // namespace fsdpd
