#include "fsdp/torch/torch_status.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>
#include <stdexcept>
#include <system_error>

#include "base/process/shortage.h"

namespace fsdpd {
namespace {

TEST(TorchStatus, ReturnsStatusUnchanged) {
  EXPECT_TRUE(CatchTorch([] { return absl::OkStatus(); }).ok());
  EXPECT_EQ(CatchTorch([] { return absl::NotFoundError("x"); }).code(), absl::StatusCode::kNotFound);
}

TEST(TorchStatus, KeepsMessageWithoutStackTrace) {
  const absl::Status status = CatchTorch([]() -> absl::Status {
    TORCH_CHECK(false, "rows ", 3);
    return absl::OkStatus();
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(status.message(), "rows 3");
}

TEST(TorchStatus, MapsOutOfMemoryAndLostPeers) {
  const auto out_of_memory = []() -> absl::Status {
    TORCH_CHECK_WITH(OutOfMemoryError, false, "GPU 0");
    return absl::OkStatus();
  };
  EXPECT_EQ(CatchTorch(out_of_memory).code(), absl::StatusCode::kResourceExhausted);
  const auto lost_peer = []() -> absl::Status {
    C10_THROW_ERROR(DistBackendError, "NCCL");
    return absl::OkStatus();
  };
  EXPECT_EQ(CatchTorch(lost_peer).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(CatchTorch([]() -> absl::Status { throw std::bad_alloc(); }).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(CatchTorch([]() -> absl::Status { throw std::runtime_error("x"); }).code(),
            absl::StatusCode::kInternal);
}

TEST(TorchStatus, IdentifiesThreadCreationFailure) {
  const absl::Status status = CatchTorch([]() -> absl::Status {
    throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), ::testing::StartsWith("the system cannot start more threads"));
  EXPECT_EQ(IsOfThreads(status), !OwnThreadLimits().empty());
  EXPECT_FALSE(IsOfThreads(CatchTorch([]() -> absl::Status { throw std::bad_alloc(); })));
}

}  // namespace
}  // namespace fsdpd
