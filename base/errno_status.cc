#include "base/errno_status.h"

#include <absl/strings/cord.h>
#include <absl/strings/str_cat.h>
#include <string.h>

namespace fsdpd {
namespace {

constexpr char kFull[] = "fsdpd/disk-full";

}  // namespace

std::string ErrnoText(absl::string_view what, int error) { return absl::StrCat(what, ": ", strerror(error)); }

absl::Status ErrnoStatus(absl::string_view what, int error) {
  const std::string text = ErrnoText(what, error);
  absl::Status status = error == ENOENT ? absl::NotFoundError(text) : absl::UnavailableError(text);
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) status.SetPayload(kFull, absl::Cord("1"));
  return status;
}

bool IsDiskFull(const absl::Status& status) { return status.GetPayload(kFull).has_value(); }

}  // namespace fsdpd
