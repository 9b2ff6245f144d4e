#include "base/temp_dir.h"

#include <stdlib.h>

#include "base/check.h"

namespace fsdpd {

TempDir::TempDir() {
  const char* root = getenv("TEST_TMPDIR");
  std::string name = std::string(root != nullptr ? root : "/tmp") + "/fsdpd-test-XXXXXX";
  FSDPD_CHECK(mkdtemp(name.data()) != nullptr);
  path_ = name;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace fsdpd
