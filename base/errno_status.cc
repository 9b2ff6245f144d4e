#include "base/errno_status.h"

#include <absl/strings/str_cat.h>
#include <string.h>

namespace fsdpd {

std::string ErrnoText(absl::string_view what, int error) { return absl::StrCat(what, ": ", strerror(error)); }

absl::Status ErrnoStatus(absl::string_view what, int error) {
  const std::string text = ErrnoText(what, error);
  return error == ENOENT ? absl::NotFoundError(text) : absl::UnavailableError(text);
}

}  // namespace fsdpd
