#include "base/shortage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <new>
#include <stdexcept>
#include <system_error>

#include "base/temp_dir.h"

namespace fsdpd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

// While it lives.
class Limit {
 public:
  Limit(__rlimit_resource resource, rlim_t value) : resource_(resource) {
    EXPECT_EQ(getrlimit(resource, &before_), 0);
    const rlimit limit{value, before_.rlim_max};
    EXPECT_EQ(setrlimit(resource, &limit), 0);
  }
  ~Limit() { EXPECT_EQ(setrlimit(resource_, &before_), 0); }

 private:
  const __rlimit_resource resource_;
  rlimit before_{};
};

TEST(OwnLimits, OfMemoryAreThoseThatAreSet) {
  const Limit none(RLIMIT_AS, RLIM_INFINITY);
  EXPECT_EQ(OwnMemoryLimits(), "");
  const Limit mapped(RLIMIT_AS, rlim_t{1} << 46);  // Sanitizers map terabytes.
  EXPECT_THAT(OwnMemoryLimits(), MatchesRegex("this process may map 64.0 TiB \\(ulimit -v\\) and has mapped "
                                              "[0-9.]+ [KMGT]iB"));
  const Limit data(RLIMIT_DATA, rlim_t{1} << 46);
  EXPECT_THAT(OwnMemoryLimits(), HasSubstr(", this process may have 64.0 TiB of data (ulimit -d) and has "));
}

TEST(OwnLimits, OfThreadsAreThoseOfItsGroupAndOfMemoryForStacks) {
  const TempDir root;
  const auto write = [&](const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root.File(path)).parent_path());
    std::ofstream(root.File(path)) << text;
  };
  write("proc/self/cgroup", "0::/pod\n");
  write("sys/fs/cgroup/pod/pids.max", "28\n");
  write("sys/fs/cgroup/pod/pids.current", "27\n");
  const Limit mapped(RLIMIT_AS, rlim_t{1} << 46);
  EXPECT_THAT(
      OwnThreadLimits(root.path()),
      AllOf(HasSubstr("of 28 processes and threads that its control group may have (pids.max), 27 run"),
            HasSubstr("this process may map 64.0 TiB (ulimit -v)")));
}

TEST(ShortageIn, IsWordsOfMemoryAndOfThreads) {
  const Limit mapped(RLIMIT_AS, rlim_t{1} << 46);
  const auto memory = ShortageIn(std::bad_alloc());
  ASSERT_TRUE(memory.has_value());
  EXPECT_FALSE(memory->of_threads);
  EXPECT_THAT(memory->text, StartsWith("out of host memory: this process may map 64.0 TiB"));
  const auto threads =
      ShortageIn(std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again)));
  ASSERT_TRUE(threads.has_value());
  EXPECT_TRUE(threads->of_threads);
  EXPECT_THAT(threads->text, StartsWith("the system starts no more threads: "));
}

TEST(ShortageIn, IsNoneInOtherErrors) {
  EXPECT_FALSE(ShortageIn(std::runtime_error("x")).has_value());
  EXPECT_FALSE(ShortageIn(std::system_error(std::make_error_code(std::errc::io_error))).has_value());
}

}  // namespace
}  // namespace fsdpd
