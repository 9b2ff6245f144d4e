#include "base/process/shortage.h"

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

TEST(OwnLimits, MemoryLimitsAreThoseThatAreSet) {
  const Limit none(RLIMIT_AS, RLIM_INFINITY);
  EXPECT_EQ(OwnMemoryLimits(), "");
  const Limit mapped(RLIMIT_AS, rlim_t{1} << 46);  // Sanitizers map terabytes.
  EXPECT_THAT(OwnMemoryLimits(), MatchesRegex("this process may map 64.0 TiB \\(ulimit -v\\) and has mapped "
                                              "[0-9.]+ [KMGT]iB"));
  const Limit data(RLIMIT_DATA, rlim_t{1} << 46);
  EXPECT_THAT(OwnMemoryLimits(), HasSubstr(", this process may have 64.0 TiB of data (ulimit -d) and has "));
}

TEST(OwnLimits, ThreadLimitsAreThoseOfTheCgroup) {
  const TempDir root;
  EXPECT_EQ(OwnThreadLimits(root.path()), "");
  const auto write = [&](const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root.File(path)).parent_path());
    std::ofstream(root.File(path)) << text;
  };
  write("proc/self/cgroup", "0::/pod\n");
  write("sys/fs/cgroup/pod/pids.max", "28\n");
  write("sys/fs/cgroup/pod/pids.current", "27\n");
  EXPECT_EQ(OwnThreadLimits(root.path()),
            "of 28 processes and threads that its control group may have (pids.max), 27 run");
}

TEST(ShortageIn, ReportsOutOfMemory) {
  const Limit mapped(RLIMIT_AS, rlim_t{1} << 46);
  const auto memory = ShortageIn(std::bad_alloc());
  ASSERT_TRUE(memory.has_value());
  EXPECT_FALSE(memory->of_threads);
  EXPECT_THAT(memory->text, StartsWith("out of host memory: this process may map 64.0 TiB"));
}

// Starting a thread fails for lack of either.
TEST(ShortageIn, ThreadWithoutStackMemoryIsOutOfMemory) {
  const std::system_error no_thread(std::make_error_code(std::errc::resource_unavailable_try_again));
  const auto threads = ShortageIn(no_thread);
  ASSERT_TRUE(threads.has_value());
  EXPECT_THAT(threads->text, StartsWith("the system cannot start more threads"));
  EXPECT_EQ(threads->of_threads, !OwnThreadLimits().empty());
  const Limit data(RLIMIT_DATA, 4096);
  const auto stack = ShortageIn(no_thread);
  ASSERT_TRUE(stack.has_value());
  EXPECT_FALSE(stack->of_threads);
  EXPECT_THAT(stack->text, AllOf(StartsWith("out of host memory for a thread's stack of "),
                                 HasSubstr(" (ulimit -s): this process may have 4.00 KiB of data")));
}

TEST(ShortageIn, IgnoresOtherErrors) {
  EXPECT_FALSE(ShortageIn(std::runtime_error("x")).has_value());
  EXPECT_FALSE(ShortageIn(std::system_error(std::make_error_code(std::errc::io_error))).has_value());
}

}  // namespace
}  // namespace fsdpd
