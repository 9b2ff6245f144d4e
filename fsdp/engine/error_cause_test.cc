#include "fsdp/engine/error_cause.h"

#include <gtest/gtest.h>

#include <system_error>

#include "base/errno_status.h"
#include "fsdp/engine/bad_step.h"
#include "fsdp/torch/torch_status.h"

namespace fsdpd {
namespace {

TEST(RankFault, ContentErrorOnAllRanksIsPermanent) {
  struct Case {
    absl::Status status;
    bool marked;
    bool permanent;
  };
  const Case cases[] = {
      {absl::InvalidArgumentError("token 7 is not below vocab_size 5"), true, true},
      {absl::FailedPreconditionError("does not match this job's model"), true, true},
      {absl::UnimplementedError("is of a type that is not read"), true, true},
      {absl::NotFoundError("no such file"), true, false},
      {absl::PermissionDeniedError("permission denied"), true, false},
      {absl::DataLossError("changed while it was read"), true, false},
      {absl::UnavailableError("a peer left"), false, false},
      {absl::DeadlineExceededError("was not set within 5m"), false, false},
      {absl::CancelledError("asked to stop"), false, false},
      {absl::InternalError("read: Input/output error"), false, false},
      {absl::OkStatus(), false, false},
  };
  for (const Case& each : cases) {
    for (const bool by_all : {false, true}) {
      const absl::Status blamed = WithFileCause(v1::ErrorClass::KIND_DATA, by_all, each.status);
      EXPECT_EQ(blamed.code(), each.status.code());
      EXPECT_EQ(blamed.message(), each.status.message());
      const auto fault = CauseOf(blamed);
      ASSERT_EQ(fault.has_value(), each.marked) << each.status;
      if (!each.marked) continue;
      EXPECT_EQ(fault->kind(), v1::ErrorClass::KIND_DATA);
      EXPECT_EQ(fault->permanent(), each.permanent && by_all) << each.status;
    }
  }
}

TEST(RankFault, FirstMarkWinsAndSurvivesAnnotated) {
  const absl::Status data =
      WithCause(v1::ErrorClass::KIND_DATA, /*permanent=*/true, absl::InternalError("bad token"));
  const absl::Status annotated =
      WithCause(v1::ErrorClass::KIND_NODE, /*permanent=*/false, Annotated(data, "step 7: "));
  EXPECT_EQ(annotated.message(), "step 7: bad token");
  ASSERT_TRUE(CauseOf(annotated).has_value());
  EXPECT_EQ(CauseOf(annotated)->kind(), v1::ErrorClass::KIND_DATA);
  EXPECT_TRUE(CauseOf(annotated)->permanent());
  EXPECT_FALSE(CauseOf(absl::InternalError("another")).has_value());
}

TEST(RankFault, BlamesThreadLimitOnNode) {
  const absl::Status status = CatchTorch([]() -> absl::Status {
    throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
  });
  const auto fault = CauseOf(Annotated(status, "connecting: "));
  ASSERT_TRUE(fault.has_value());
  // Depends on the environment of the test.
  EXPECT_EQ(fault->kind(), IsOfThreads(status) ? v1::ErrorClass::KIND_NODE : v1::ErrorClass::KIND_MEMORY);
  EXPECT_FALSE(fault->permanent());
}

// Regression: it was considered the rank's own error, so the next attempt went to the same node.
TEST(RankFault, BlamesDescriptorLimitOnNode) {
  for (const int error : {EMFILE, ENFILE}) {
    const auto fault = CauseOf(Annotated(ErrnoStatus("open /data/tokens.bin", error), "reading: "));
    ASSERT_TRUE(fault.has_value()) << error;
    EXPECT_EQ(fault->kind(), v1::ErrorClass::KIND_NODE);
    EXPECT_FALSE(fault->permanent());
  }
  EXPECT_FALSE(CauseOf(ErrnoStatus("open /data/tokens.bin", EIO)).has_value());
}

}  // namespace
}  // namespace fsdpd
