#include "base/errno_status.h"

#include <absl/strings/cord.h>
#include <absl/strings/str_cat.h>
#include <string.h>
#include <sys/resource.h>

#include <cstdint>

#include "base/text.h"

namespace fsdpd {
namespace {

constexpr char kFull[] = "fsdpd/disk-full";
constexpr char kNoDescriptors[] = "fsdpd/no-descriptors";

}  // namespace

// Names the limit: otherwise users look at the disk, which has free space.
std::string ErrnoText(absl::string_view what, int error) {
  std::string text = absl::StrCat(what, ": ", strerror(error));
  rlimit limit = {};
  if (error == EFBIG && getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    absl::StrAppend(&text, ", as a file of this process may have ",
                    HumanBytes(static_cast<int64_t>(limit.rlim_cur)), " (ulimit -f)");
  if (error == EMFILE && getrlimit(RLIMIT_NOFILE, &limit) == 0)
    absl::StrAppend(&text, ", of ", limit.rlim_cur, " that this process may have open (ulimit -n)");
  return text;
}

absl::Status ErrnoStatus(absl::string_view what, int error) {
  const std::string text = ErrnoText(what, error);
  absl::Status status = error == ENOENT ? absl::NotFoundError(text) : absl::UnavailableError(text);
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) status.SetPayload(kFull, absl::Cord("1"));
  if (error == EMFILE || error == ENFILE) status.SetPayload(kNoDescriptors, absl::Cord("1"));
  return status;
}

bool IsDiskFull(const absl::Status& status) { return status.GetPayload(kFull).has_value(); }

bool IsOutOfDescriptors(const absl::Status& status) { return status.GetPayload(kNoDescriptors).has_value(); }

}  // namespace fsdpd
