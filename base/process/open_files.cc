#include "base/process/open_files.h"

#include <sys/resource.h>

#include "base/errno_status.h"
#include "base/log.h"

namespace fsdpd {

int64_t RaiseOpenFiles() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    LogWarning("%s", ErrnoText("getrlimit RLIMIT_NOFILE").c_str());
    return 0;
  }
  const rlim_t before = limit.rlim_cur;
  limit.rlim_cur = limit.rlim_max;
  if (before == limit.rlim_max || setrlimit(RLIMIT_NOFILE, &limit) == 0)
    return static_cast<int64_t>(limit.rlim_max);
  LogWarning("%s", ErrnoText("setrlimit RLIMIT_NOFILE").c_str());
  return static_cast<int64_t>(before);
}

}  // namespace fsdpd
